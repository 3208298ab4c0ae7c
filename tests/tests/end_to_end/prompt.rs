//! The prompt on a terminal: keys, completion, commands, and tables within its width.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use volley_tests::binary;

/// Deadline of an answer, which only a hang exceeds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Prompt on a terminal of its own.
struct Terminal {
    keys: File,
    process: Child,
    screen: Arc<(Mutex<String>, Condvar)>,
    /// Bytes of the screen that were looked at.
    seen: usize,
}

impl Terminal {
    fn open(dir: &Path, columns: u16, arguments: &[&str]) -> Self {
        Self::open_with(dir, columns, arguments, &[])
    }

    fn open_with(
        dir: &Path,
        columns: u16,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let size = Winsize {
            ws_row: 40,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).unwrap();
        let terminal = || File::from(pty.slave.try_clone().unwrap());
        let process = Command::new(binary("volley"))
            .args(["--executors", "1", "--history", "history"])
            .args(arguments)
            .current_dir(dir)
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .env("PAGER", "cat")
            .env("HOME", dir)
            .env("VOLLEY_CLUSTER_DIR", dir)
            .envs(environment.iter().copied())
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal())
            .spawn()
            .unwrap();
        drop(pty.slave);
        let screen = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let mut output = File::from(pty.master.try_clone().unwrap());
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
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
                shown.0.lock().unwrap().push_str(&text);
                shown.1.notify_all();
            }
        });
        Self {
            keys: pty.master.into(),
            process,
            screen,
            seen: 0,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until a text is shown, and returns what is shown up to its end.
    fn sees(&mut self, text: &str) -> String {
        let began = Instant::now();
        let mut screen = self.screen.0.lock().unwrap();
        loop {
            if let Some(at) = screen[self.seen..].find(text) {
                let end = self.seen + at + text.len();
                let shown = screen[self.seen..end].to_owned();
                self.seen = end;
                return shown;
            }
            let left = DEADLINE.saturating_sub(began.elapsed());
            assert!(!left.is_zero(), "no {text:?} in:\n{}", &screen[self.seen..]);
            screen = self.screen.1.wait_timeout(screen, left).unwrap().0;
        }
    }

    /// Types a line and returns what is shown until the next prompt. Around that, the editor switches off and on what tells
    /// it of pasted text.
    fn answers(&mut self, line: &str) -> String {
        self.press(&format!("{line}\r"));
        self.sees("\x1b[?2004l");
        self.sees("\x1b[?2004h")
    }

    fn quits(mut self) {
        self.press("quit\r");
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
fn a_prompt_answers_what_people_type() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join(".volleyrc"),
        "CREATE VIEW sales AS\nSELECT 7 AS amount;\n\\timing off\n",
    )
    .unwrap();
    let mut terminal = Terminal::open(dir.path(), 80, &[]);
    terminal.sees("Type help for help");
    terminal.sees("volley> ");

    let help = terminal.answers("help");
    assert!(
        help.contains(r"\timing") && help.contains("Ctrl-R"),
        "{help}"
    );
    assert!(
        terminal
            .answers(r"\h drop model")
            .contains("DROP MODEL [IF EXISTS] name [VERSION n];")
    );
    assert!(
        terminal
            .answers(r"\h model_type")
            .contains("'dnn_classifier'")
    );
    assert!(
        terminal
            .answers(r"\h ml.roc_curve")
            .contains("FROM ML.ROC_CURVE(MODEL name")
    );
    assert!(
        terminal
            .answers(r"\formt")
            .contains("did you mean \"format\"")
    );

    // Commands in the middle of a statement leave it as it is.
    terminal.press("SELECT 'a' AS one,\r");
    terminal.sees("   ...> ");
    terminal.press("\\p\r");
    terminal.sees("SELECT 'a' AS one,");
    terminal.sees("   ...> ");
    terminal.press("\r");
    terminal.sees("a statement ends with ;");
    terminal.sees("   ...> ");
    let rows = terminal.answers("2 AS two;");
    assert!(
        rows.contains("| one | two |") && rows.contains("| a   |   2 |"),
        "{rows}"
    );
    assert!(rows.contains("(1 row)\r\n"), "{rows}");
    assert!(terminal.answers(r"\g").contains("| a   |   2 |"));

    // The file of the user's own has run.
    assert!(terminal.answers(r"\d").contains("sales"));
    assert!(!terminal.answers(r"\d").contains("training_runs"));
    assert!(terminal.answers(r"\dS").contains("training_runs"));

    assert!(terminal.answers(r"\df subst").contains("substr"));
    assert!(terminal.answers(r"\l").contains("public"));
    assert!(terminal.answers(r"\jobs").contains("job_id"));
    terminal.answers(r"\set datafusion.execution.batch_size 77");
    assert!(
        terminal
            .answers(r"\set datafusion.execution.batch_size")
            .contains("| 77 ")
    );

    // Tab completes.
    terminal.press("SELECT am\t");
    terminal.press("\x15SELECT amount FROM sal\t");
    terminal.sees("FROM sales");
    assert!(terminal.answers(";").contains("|      7 |"));
    terminal.press("select * from volley.usa\t");
    terminal.sees("volley.usage");
    assert!(terminal.answers(" limit 0;").contains("(0 rows"));

    // An error leaves the prompt as it was.
    let error = terminal.answers("SELECT nothing FROM sales;");
    assert!(
        error.contains("error:") && error.contains("\n  SELECT nothing FROM sales\r\n         ^"),
        "{error}"
    );
    assert!(
        terminal
            .answers(r"\i nowhere.sql")
            .contains("cannot read nowhere.sql")
    );
    fs::write(dir.path().join("a.sql"), "SELECT 40 + 2 AS answer;").unwrap();
    assert!(terminal.answers(r"\i a.sql").contains("|     42 |"));
    terminal.quits();

    let history = fs::read_to_string(dir.path().join("history")).unwrap();
    assert!(history.contains("2 AS two;"), "{history}");
    assert!(!history.contains(r"\timing"), "{history}");
}

#[test]
fn tables_fit_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    for columns in [80_u16, 200] {
        let mut terminal = Terminal::open(dir.path(), columns, &[]);
        terminal.sees("volley> ");
        let wide: Vec<_> = (0..40).map(|n| format!("{n}23456 AS column_{n}")).collect();
        let wide = format!("SELECT {};", wide.join(", "));
        fs::write(dir.path().join("wide.sql"), &wide).unwrap();
        let shown = terminal.answers(r"\i wide.sql");
        let table: Vec<_> = shown
            .lines()
            .filter(|line| line.starts_with(['|', '+']))
            .collect();
        assert_eq!(table.len(), 5, "{shown}");
        let fits = |line: &&str| line.chars().count() <= columns.into();
        assert!(table.iter().all(fits) && table[1].contains('…'), "{shown}");
        assert!(
            table[1].contains("column_0 ") && table[1].contains("column_39 "),
            "{shown}"
        );
        assert!(shown.contains("columns left out"), "{shown}");
        terminal.answers(r"\x");
        let shown = terminal.answers(r"\i wide.sql");
        assert!(
            shown.contains("-[ row 1 ]-") && shown.contains("column_20 | 2023456"),
            "{shown}"
        );
        terminal.answers(r"\x");
        let shown = terminal.answers("SELECT * FROM range(200000);");
        assert!(
            shown.contains("(first 1,000 of 200,000 rows"),
            "{}",
            shown.lines().count()
        );
        assert_eq!(
            shown.lines().filter(|line| line.starts_with('|')).count(),
            1001
        );

        // Plans are trees within the width, and what a training takes is broken into lines.
        let fits = |shown: &str| {
            let wide = shown
                .lines()
                .map(|line| line.trim_end().chars().count())
                .max();
            wide.unwrap() <= columns.into()
        };
        let join = "SELECT a.value % 7 AS k, count(*) AS n, sum(b.value) AS s FROM range(1000) a \
                    JOIN range(500) b ON a.value = b.value WHERE a.value % 3 = 1 GROUP BY 1;";
        fs::write(dir.path().join("plan.sql"), format!("EXPLAIN {join}")).unwrap();
        let plan = terminal.answers(r"\i plan.sql");
        assert!(plan.contains("  └─ ") && fits(&plan), "{plan}");
        fs::write(
            dir.path().join("analyze.sql"),
            format!("EXPLAIN ANALYZE {join}"),
        )
        .unwrap();
        let stages = terminal.answers(r"\i analyze.sql");
        let header = stages.lines().find(|line| line.contains("stage  "));
        let header: Vec<_> = header.unwrap().split_whitespace().collect();
        let due = [
            "stage", "tasks", "rows", "bytes", "seconds", "skew", "spilled", "reads",
        ];
        assert_eq!(header, due, "{stages}");
        assert!(fits(&stages), "{stages}");
        let model = "EXPLAIN CREATE MODEL m OPTIONS (input_label_cols = ['y'])
            AS SELECT value AS x, value * 2 AS y FROM range(1000);";
        fs::write(dir.path().join("model.sql"), model).unwrap();
        let needs = terminal.answers(r"\i model.sql");
        assert!(needs.contains("a rank's memory") && fits(&needs), "{needs}");
        assert!(!needs.contains("logical_plan"), "{needs}");
        terminal.quits();
    }
}

#[test]
fn long_tables_are_paged_and_statements_edited() {
    let dir = tempfile::tempdir().unwrap();
    let editor = dir.path().join("editor");
    let edited = "SELECT 41 + 1 AS edited;";
    fs::write(
        &editor,
        format!("#!/bin/sh\ncat \"$1\" >> before\necho '{edited}' > \"$1\"\n"),
    )
    .unwrap();
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
    let environment = [
        ("PAGER", "sed 's/^/page: /'"),
        ("VISUAL", ""),
        ("EDITOR", editor.to_str().unwrap()),
    ];
    let mut terminal = Terminal::open_with(dir.path(), 80, &[], &environment);
    terminal.sees("volley> ");
    let short = terminal.answers("SELECT * FROM range(5);");
    assert!(!short.contains("page: "), "{short}");
    let long = terminal.answers("SELECT * FROM range(100);");
    assert_eq!(long.matches("page: |").count(), 101, "{long}");
    assert!(long.contains("\n(100 rows"), "{long}");

    // The last statement is edited, and the text is the next line.
    terminal.press("\\e\r");
    terminal.sees(edited);
    let rows = terminal.answers("");
    assert!(rows.contains("|     42 |"), "{rows}");
    let before = fs::read_to_string(dir.path().join("before")).unwrap();
    assert_eq!(before.trim(), "SELECT * FROM range(100);");
    fs::write(&editor, "#!/bin/sh\nexit 3\n").unwrap();
    let failed = terminal.answers(r"\e");
    assert!(failed.contains("the statement is as it was"), "{failed}");
    terminal.quits();
}

#[test]
fn rows_go_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(dir.path(), 100, &["--quiet"]);
    terminal.sees("volley> ");
    assert!(
        terminal
            .answers(r"\format parquet")
            .contains("cannot show parquet")
    );
    for line in [
        r"\o rows.csv",
        r"\format csv",
        "SELECT CAST(NULL AS VARCHAR) AS a, '' AS b, 1 AS c;",
        r"\o rows.parquet",
        r"\format parquet",
        "SELECT value FROM range(5000);",
        r"\o",
        r"\format table",
    ] {
        let shown = terminal.answers(line);
        assert!(!shown.contains("error"), "{shown}");
    }
    let shown = terminal.answers("SELECT sum(value) AS s FROM 'rows.parquet';");
    assert!(shown.contains("| 12497500 |"), "{shown}");
    terminal.quits();
    let csv = fs::read_to_string(dir.path().join("rows.csv")).unwrap();
    assert_eq!(csv, "a,b,c\n,\"\",1\n");
}
