//! A browser without a window, driven over the WebDriver protocol (<https://www.w3.org/TR/webdriver2/>).
//!
//! It is chromedriver's Chromium, with the few calls that tests of the page need; client crates need more to build
//! than these lines. The page's network requests and its console output are recorded from the start.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::{Process, eventually};

/// Timeout of the browser's start and of each answer.
const ANSWER: Duration = Duration::from_secs(60);
/// Variable set to `required` where tests must not be left out for lack of a browser.
const REQUIRED: &str = "VOLLEY_BROWSER";

/// Returns the folder of the docs' pictures, where these are to be taken: with `VOLLEY_UPDATE_DOCS`.
///
/// # Panics
/// When there is no such folder.
pub fn images() -> Option<PathBuf> {
    std::env::var_os("VOLLEY_UPDATE_DOCS")?;
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images");
    assert!(images.is_dir(), "no folder {}", images.display());
    Some(images)
}

/// Browser with one page open; ended when dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Process,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser with its driver's log in this folder. Without `chromedriver`, says so on standard error and
    /// returns `None`.
    ///
    /// # Panics
    /// When the browser does not start by the deadline, or is required and missing.
    pub fn start(dir: &Path) -> Option<Self> {
        if Command::new("chromedriver")
            .arg("--version")
            .output()
            .is_err()
        {
            let required = std::env::var_os(REQUIRED).is_some_and(|value| value == "required");
            assert!(
                !required,
                "{REQUIRED}=required, and no chromedriver on PATH"
            );
            eprintln!("left out: there is no chromedriver on PATH");
            return None;
        }
        let mut driver = Command::new("chromedriver");
        let driver = Process::start(driver.arg("--port=0"), &dir.join("chromedriver.log"));
        let port = eventually("chromedriver's port", ANSWER, || {
            let said = driver.output();
            let (_, after) = said.split_once("started successfully on port ")?;
            after.split_once('.')?.0.parse().ok()
        });
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
        };
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": [
                // Containers have users without namespaces, and a small /dev/shm.
                "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
            ]},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let session = browser.ask("POST", "/session", &wanted);
        let id = session["sessionId"].as_str().expect("a session has an id");
        browser.session = id.to_owned();
        Some(browser)
    }

    /// Opens a page.
    ///
    /// # Panics
    /// When the browser refuses, as in all of these functions.
    pub fn open(&self, url: &str) {
        self.command("url", &json!({ "url": url }));
    }

    /// Makes the page this wide, as on a phone.
    pub fn narrow(&self, width: u32) {
        self.resize(json!({"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": true}));
    }

    /// Makes the page this wide and high, as on a desk.
    pub fn widen(&self, width: u32, height: u32) {
        self.resize(
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        );
    }

    fn resize(&self, params: Value) {
        self.devtools("Emulation.setDeviceMetricsOverride", params);
    }

    /// Denies the page a permission, by its name in `navigator.permissions`.
    pub fn deny(&self, permission: &str) {
        let params = json!({"permission": {"name": permission}, "setting": "denied"});
        self.devtools("Browser.setPermission", params);
    }

    /// Has the page drawn for a dark or for a light screen.
    pub fn darken(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let feature = json!({"name": "prefers-color-scheme", "value": value});
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    /// Clicks at the middle of the first element that a selector finds, as a person does.
    ///
    /// # Panics
    /// When there is none.
    pub fn click(&self, selector: &str) {
        let place = self.look(&format!(
            "(() => {{ const node = document.querySelector({}); if (!node) return null; \
             node.scrollIntoView({{block: 'center'}}); const box = node.getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(selector)
        ));
        assert!(place.is_array(), "nothing is {selector}");
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.devtools("Input.dispatchMouseEvent", event);
        }
        // The page is not drawn anew while the pointer rests on a picture.
        let away = json!({"type": "mouseMoved", "x": 1, "y": 1});
        self.devtools("Input.dispatchMouseEvent", away);
    }

    /// Presses a key, by its name in DOM events.
    pub fn press(&self, key: &str) {
        let text = if key.len() == 1 {
            key
        } else if key == "Enter" {
            "\r"
        } else {
            ""
        };
        // Only these have a code that Chromium acts on.
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let event =
                json!({"type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code});
            self.devtools("Input.dispatchKeyEvent", event);
        }
    }

    /// Returns the roles and sources of links, buttons, fields, regions and pictures that have no name for screen readers.
    pub fn unnamed(&self) -> Vec<String> {
        let named = [
            "link",
            "button",
            "textbox",
            "searchbox",
            "combobox",
            "checkbox",
            "image",
            "region",
            "search",
            "navigation",
        ];
        let tree = self.devtools("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().expect("a tree has nodes").iter();
        let unnamed = nodes.filter(|node| {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let name = node["name"]["value"].as_str().unwrap_or_default();
            node["ignored"] == false && named.contains(&role) && name.trim().is_empty()
        });
        unnamed.map(|node| node.to_string()).collect()
    }

    fn devtools(&self, name: &str, params: Value) -> Value {
        self.command("goog/cdp/execute", &json!({"cmd": name, "params": params}))
    }

    /// Returns a picture of what is seen, as PNG.
    pub fn picture(&self) -> Vec<u8> {
        let answer = self.devtools("Page.captureScreenshot", json!({"format": "png"}));
        let data = answer["data"].as_str().expect("a picture has data");
        BASE64_STANDARD
            .decode(data)
            .expect("a picture is in base 64")
    }

    /// Returns the value of an expression in the page.
    pub fn look(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until the expression's value is neither null nor false, and returns it.
    ///
    /// # Panics
    /// When it is null or false until the deadline.
    pub fn await_look(&self, expression: &str, deadline: Duration) -> Value {
        eventually(expression, deadline, || {
            let value = self.look(expression);
            (!matches!(value, Value::Null | Value::Bool(false))).then_some(value)
        })
    }

    /// Returns the console's output since the last call.
    pub fn console(&self) -> Vec<String> {
        let entries = self.log("browser").into_iter();
        entries.map(|entry| entry.to_string()).collect()
    }

    /// Returns the addresses requested since the last call.
    pub fn requests(&self) -> Vec<String> {
        let event = |entry: Value| -> Option<String> {
            let event: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let event = &event["message"];
            let url = event["params"]["request"]["url"].as_str()?;
            (event["method"] == "Network.requestWillBeSent").then(|| url.to_owned())
        };
        self.log("performance")
            .into_iter()
            .filter_map(event)
            .collect()
    }

    fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.command("se/log", &json!({ "type": kind }));
        entries.as_array().cloned().unwrap_or_default()
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}/{name}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self
            .exchange(method, path, &body.to_string())
            .unwrap_or_else(|error| panic!("chromedriver does not answer {path}: {error}"));
        assert!(status == 200, "{method} {path} {body}\n{status} {answer}");
        answer["value"].clone()
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, Value)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\n",
            self.port
        );
        let length = body.len();
        write!(
            request,
            "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("a string can be written to");
        stream.write_all(request.as_bytes())?;
        // The connection stays open whatever is requested, so the answer's end is found by its length.
        let mut answer = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            answer.read_line(&mut line)?;
            if line.trim_end().is_empty() {
                break;
            }
            head.push(line);
        }
        let status = head.first().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|code| code.parse().ok()).unwrap_or(0);
        let length = head.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse().ok())?
        });
        let length = length.unwrap_or(0);
        let mut body = vec![0; length];
        answer.read_exact(&mut body)?;
        Ok((status, serde_json::from_slice(&body)?))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser; if it were killed, the browser would stay behind.
        if !self.session.is_empty() {
            self.exchange("DELETE", &format!("/session/{}", self.session), "")
                .ok();
        }
        self.driver.kill();
    }
}
