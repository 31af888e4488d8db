//! A headless Chromium, driven by WebDriver (<https://www.w3.org/TR/webdriver2/>).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::child::{self, Child};
use crate::web;

/// The contrast of the text of some elements with what is behind them, as WCAG 2.2 defines it, at
/// worst, and widths.
pub const LEGIBLE: &str = "
    const parse = color => color.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((all, c, n) => all + c * [0.2126, 0.7152, 0.0722][n], 0);
    const ground = node => {
        for (let at = node; at; at = at.parentElement) {
            const color = parse(getComputedStyle(at).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    let worst = [100, ''];
    for (const node of document.querySelectorAll(
        'h1, h2, h3, p, li, dt, dd, th, td, caption, button, a, figcaption span, small')) {
        if (!node.textContent.trim() || !node.checkVisibility() || node.closest('.hidden, \
        .skip')) continue;
        const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < worst[0]) worst = [contrast, `${node.tagName} ${node.className} ${node.textContent.trim()}`];
    }
    return { worst, ground: getComputedStyle(document.body).backgroundColor,
        width: document.documentElement.scrollWidth, inner: innerWidth };";

pub struct Browser {
    client: Client,
    /// The address of the session.
    session: String,
    _driver: Child,
}

impl Browser {
    /// Starts `chromedriver` and, through it, a browser that can reach nothing but 127.0.0.1.
    ///
    /// # Panics
    ///
    /// If one of them does not start.
    pub async fn start() -> Self {
        let (folder, port, client) = (child::folder(), child::free_port(), web::client());
        // The driver gives the browser a process group of its own, and does not end it when it is
        // killed itself.
        let wrapper = folder.join("chromium");
        let chromium = child::program("chromium");
        let script = format!(
            "#!/bin/sh\necho $$ >{:?}\nexec {chromium:?} \"$@\"\n",
            folder.join("browser.pid")
        );
        fs::write(&wrapper, script).expect("a temporary folder");
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect(
            "a file written \
            above",
        );

        let profile = format!("--user-data-dir={}", folder.join("profile").display());
        let port_argument = format!("--port={port}");
        let home = folder.display().to_string();
        let driver = Child::start(
            folder,
            &child::program("chromedriver"),
            &[&port_argument],
            &[("HOME", &home)],
        );
        let url = format!("http://127.0.0.1:{port}");
        web::until(Duration::from_secs(20), "chromedriver", async || {
            let (_, status) =
                web::json(&client, Method::GET, &format!("{url}/status"), None).await?;
            if status["value"]["ready"] == true {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
            "goog:chromeOptions": {
                "binary": wrapper,
                "args": [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                    "--disable-background-networking", "--no-first-run", "--window-size=1280,1000", profile,
                    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                ],
            },
        }}});
        let session = web::json(
            &client,
            Method::POST,
            &format!("{url}/session"),
            Some(&capabilities),
        )
        .await;
        let (_, session) =
            session.unwrap_or_else(|error| panic!("no session: {error}\n{}", driver.output()));
        let id = session["value"]["sessionId"].as_str();
        let id = id.unwrap_or_else(|| panic!("no session: {session}\n{}", driver.output()));
        Self {
            session: format!("{url}/session/{id}"),
            client,
            _driver: driver,
        }
    }

    pub async fn open(&self, url: &str) {
        self.post("url", json!({ "url": url })).await;
    }

    /// What the body of an async function returns in the page.
    pub async fn run(&self, body: &str) -> Value {
        let script = format!("return (async () => {{ {body} }})();");
        self.post("execute/sync", json!({ "script": script, "args": [] }))
            .await
    }

    /// Presses a key.
    pub async fn press(&self, key: char) {
        let actions =
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }));
        self.post(
            "actions",
            json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] }),
        )
        .await;
    }

    /// A command of the DevTools protocol.
    pub async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post(
            "goog/cdp/execute",
            json!({ "cmd": command, "params": parameters }),
        )
        .await
    }

    /// The size of what a window shows, in CSS pixels, and whether the user prefers `dark` or
    /// `light`.
    pub async fn emulate(&self, width: u32, height: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size)
            .await;
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", scheme).await;
    }

    /// Saves what the window shows as a PNG.
    pub async fn save_picture(&self, file: &Path) {
        let options = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.devtools("Page.captureScreenshot", options).await;
        fs::write(file, bytes(picture["data"].as_str().expect("base64"))).expect(
            "a file in this \
            repository",
        );
    }

    /// The messages of a log, `browser` or `performance`, since it was read last.
    pub async fn log(&self, kind: &str) -> Vec<Value> {
        self.post("se/log", json!({ "type": kind }))
            .await
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    /// The URLs of all requests since the log was read last, without those of the browser's own
    /// pages.
    pub async fn requests(&self) -> Vec<String> {
        let read = |entry: &Value| -> Option<String> {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let (method, parameters) =
                (&message["message"]["method"], &message["message"]["params"]);
            let is_own = parameters["documentURL"]
                .as_str()
                .is_some_and(|url| url.starts_with("chrome://"));
            let is_request = method == "Network.requestWillBeSent" && !is_own;
            is_request.then(|| parameters["request"]["url"].as_str().map(str::to_owned))?
        };
        self.log("performance")
            .await
            .iter()
            .filter_map(read)
            .collect()
    }

    /// Ends the browser and returns when it has ended.
    pub async fn quit(self) {
        let _ = web::json(&self.client, Method::DELETE, &self.session, None).await;
    }

    async fn post(&self, command: &str, body: Value) -> Value {
        let url = format!("{}/{command}", self.session);
        let (status, mut answer) = web::json(&self.client, Method::POST, &url, Some(&body))
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(status, 200, "{command}: {answer}");
        answer["value"].take()
    }
}

/// Reads base64.
fn bytes(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u32> = text
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte))
        .map(|at| at as u32)
        .collect();
    let of_four = |four: &[u32]| {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(of_four).collect()
}
