//! A terminal of its own for a command: keys, what is shown, and the screen, also as a page that a browser draws.
//!
//! The process has no controlling terminal: Ctrl-C is a key like others.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use volley_tests::{binary, eventually};
use vt100::{Cell, Color, Parser, Screen};

/// Deadline of an answer, which only a hang exceeds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Command on a terminal; ended when dropped.
pub(crate) struct Terminal {
    keys: File,
    process: Child,
    /// Everything that the terminal got, with escape sequences.
    shown: Arc<(Mutex<String>, Condvar)>,
    reads: JoinHandle<()>,
    /// Columns and rows.
    size: (u16, u16),
    /// Bytes of `shown` that were looked at.
    seen: usize,
}

impl Terminal {
    /// Opens a prompt in a folder, without colours.
    pub(crate) fn open(dir: &Path, columns: u16, arguments: &[&str]) -> Self {
        Self::open_with(dir, columns, arguments, &[])
    }

    pub(crate) fn open_with(
        dir: &Path,
        columns: u16,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(binary("volley"));
        command
            .args(["--executors", "1", "--history", "history"])
            .args(arguments)
            .current_dir(dir)
            .env("NO_COLOR", "1")
            .env("HOME", dir)
            .env("VOLLEY_CLUSTER_DIR", dir)
            .env("PAGER", "cat")
            .envs(environment.iter().copied());
        Self::run(command, (columns, 40))
    }

    /// Runs a command on a terminal of so many columns and rows.
    pub(crate) fn run(mut command: Command, size: (u16, u16)) -> Self {
        let window = Winsize {
            ws_row: size.1,
            ws_col: size.0,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&window), None).unwrap();
        // Processes of other tests do not inherit them.
        for end in [&pty.master, &pty.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        }
        let terminal = || File::from(pty.slave.try_clone().unwrap());
        command
            .env("TERM", "xterm")
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal());
        let process = command.spawn().unwrap();
        // The terminal ends with the process, which alone has it then.
        drop((command, pty.slave));
        let shown = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let mut output = File::from(pty.master.try_clone().unwrap());
        let so_far = Arc::clone(&shown);
        let reads = thread::spawn(move || {
            let (mut bytes, mut unread) = ([0; 4096], Vec::new());
            // Reading fails when the process has ended.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                unread.extend_from_slice(&bytes[..count]);
                // A read may end within a character.
                let whole = match str::from_utf8(&unread) {
                    Ok(text) => text.len(),
                    Err(error) => error.valid_up_to(),
                };
                let text: Vec<u8> = unread.drain(..whole).collect();
                let text = String::from_utf8(text).unwrap();
                so_far.0.lock().unwrap().push_str(&text);
                so_far.1.notify_all();
            }
        });
        Self {
            keys: pty.master.into(),
            process,
            shown,
            reads,
            size,
            seen: 0,
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Types the lines of a statement, each once the editor reads it.
    pub(crate) fn types(&mut self, lines: &[&str]) {
        let is_last = |screen: &Screen, line: &str| {
            let contents = screen.contents();
            contents.trim_end().ends_with(line)
        };
        for line in lines {
            self.press(line);
            self.awaits(line, |screen| is_last(screen, line));
            self.press("\r");
            self.awaits("the next line", |screen| !is_last(screen, line));
        }
    }

    /// Waits until a text is shown, and returns what is shown up to its end.
    pub(crate) fn sees(&mut self, text: &str) -> String {
        let began = Instant::now();
        let mut shown = self.shown.0.lock().unwrap();
        loop {
            if let Some(at) = shown[self.seen..].find(text) {
                let end = self.seen + at + text.len();
                let up_to = shown[self.seen..end].to_owned();
                self.seen = end;
                return up_to;
            }
            let left = DEADLINE.saturating_sub(began.elapsed());
            assert!(!left.is_zero(), "no {text:?} in:\n{}", &shown[self.seen..]);
            shown = self.shown.1.wait_timeout(shown, left).unwrap().0;
        }
    }

    /// Waits until the screen is as it should be, and returns it.
    pub(crate) fn awaits(&self, what: &str, is_due: impl Fn(&Screen) -> bool) -> Screen {
        let began = Instant::now();
        let mut parser = Parser::new(self.size.1, self.size.0, 0);
        let mut parsed = 0;
        let mut shown = self.shown.0.lock().unwrap();
        loop {
            parser.process(&shown.as_bytes()[parsed..]);
            parsed = shown.len();
            if is_due(parser.screen()) {
                return parser.screen().clone();
            }
            let left = DEADLINE.saturating_sub(began.elapsed());
            let contents = parser.screen().contents();
            assert!(!left.is_zero(), "no {what} in:\n{contents}");
            shown = self.shown.1.wait_timeout(shown, left).unwrap().0;
        }
    }

    /// Types a line and returns what is shown until the next prompt. Around that, the editor switches off and on what tells
    /// it of pasted text.
    pub(crate) fn answers(&mut self, line: &str) -> String {
        self.press(&format!("{line}\r"));
        self.sees("\x1b[?2004l");
        self.sees("\x1b[?2004h")
    }

    pub(crate) fn quits(mut self) {
        self.press("quit\r");
        assert!(self.process.wait().unwrap().success());
    }

    /// Waits until the command has ended, which succeeds, and returns everything that it has shown.
    pub(crate) fn ends(mut self) -> String {
        assert!(self.process.wait().unwrap().success());
        let ended = || self.reads.is_finished().then_some(());
        eventually("the end of what is shown", DEADLINE, ended);
        self.shown.0.lock().unwrap().clone()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Style of the page of a terminal.
const STYLE: &str = "\
    html { background: #fff; } \
    body { margin: 0; width: max-content; background: #10151f; } \
    header { display: flex; gap: 8px; align-items: center; padding: 10px 14px; background: #1b2230; color: #9aa6b8; \
             font: 13px 'DejaVu Sans', sans-serif; } \
    header i { width: 12px; height: 12px; border-radius: 50%; background: #3b465a; } \
    header b { flex: 1; text-align: center; margin-right: 52px; font-weight: normal; } \
    pre { margin: 0; padding: 14px 18px 18px; color: #d7dde8; font: 14px/1.32 'DejaVu Sans Mono', monospace; }";

/// Draws a screen as a page, without the empty rows at its end.
pub(crate) fn html(screen: &Screen, title: &str) -> String {
    let (rows, columns) = screen.size();
    let mut text = String::new();
    for row in 0..rows {
        for column in 0..columns {
            let Some(cell) = screen
                .cell(row, column)
                .filter(|cell| !cell.is_wide_continuation())
            else {
                continue;
            };
            let drawn = match cell.contents() {
                "" => " ",
                "<" => "&lt;",
                "&" => "&amp;",
                contents => contents,
            };
            match style(cell) {
                None => text.push_str(drawn),
                Some(style) => write!(text, "<span style=\"{style}\">{drawn}</span>").unwrap(),
            }
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    let text = text.trim_end();
    format!(
        "<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\
         <header><i></i><i></i><i></i><b>{title}</b></header><pre>{text}</pre>"
    )
}

/// Returns the style of a cell, unless it is the terminal's.
fn style(cell: &Cell) -> Option<String> {
    let colour = match cell.fgcolor() {
        Color::Default => None,
        Color::Idx(number) => Some(match number {
            2 => "#8fd694",
            4 => "#7fb2ff",
            5 => "#d59cf0",
            6 => "#6fd3d6",
            8 => "#7b8698",
            other => panic!("the page has no colour {other}"),
        }),
        Color::Rgb(..) => panic!("the prompt has no colours but the terminal's"),
    };
    let weight = cell.bold().then_some("font-weight: bold;");
    let colour = colour.map(|colour| format!("color: {colour};"));
    (colour.is_some() || weight.is_some()).then(|| {
        format!(
            "{}{}",
            colour.unwrap_or_default(),
            weight.unwrap_or_default()
        )
    })
}
