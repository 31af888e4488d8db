//! The pages that `examples/replay` writes, in a real browser.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use throttle_extra::browser::{self, Browser};
use throttle_extra::child;

/// The folder of the example.
fn source() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/replay")
}

/// Writes the page of a command about the files of the example.
fn write(command: &[&str], page: &Path) {
    let program = env::var_os("THROTTLE_EXAMPLE_REPLAY");
    let program = program.expect(
        "THROTTLE_EXAMPLE_REPLAY names the program; `sh tests/extra.sh` \
        builds it",
    );
    let output = Command::new(program)
        .current_dir(source())
        .args(command)
        .arg("--html")
        .arg(page)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn pages_are_legible_in_both_color_schemes_and_load_nothing() {
    let (folder, browser) = (child::folder(), Browser::start().await);
    for command in [
        &["replay", "throttle.toml", "access.log"][..],
        &["plan", "throttle.toml", "tighter.toml", "access.log"],
        &["fit", "access.log", "--refuse-at-most", "10%"],
    ] {
        let page = folder.join(format!("{}.html", command[0]));
        write(command, &page);
        let url = format!("file://{}", page.display());
        let mut grounds = BTreeSet::new();
        for scheme in ["light", "dark"] {
            browser.emulate(1280, 1000, scheme).await;
            browser.open(&url).await;
            let found = browser.run(browser::LEGIBLE).await;
            assert!(
                found["width"].as_u64() <= Some(1280),
                "{command:?}, {scheme}: {found}"
            );
            assert!(
                found["worst"][0].as_f64() >= Some(4.5),
                "{command:?}, {scheme}: {found}"
            );
            grounds.insert(found["ground"].as_str().unwrap().to_owned());
            // The picture that the README of the example shows.
            if command[0] == "plan"
                && scheme == "light"
                && env::var_os("THROTTLE_SCREENSHOT").is_some_and(|wanted| wanted == "1")
            {
                browser.emulate(860, 720, scheme).await;
                browser.save_picture(&source().join("page.png")).await;
            }
        }
        assert_eq!(grounds.len(), 2, "{command:?}: {grounds:?}");
        let console = browser.log("browser").await;
        assert!(console.is_empty(), "{command:?}: {console:?}");
        let requests: BTreeSet<String> = browser.requests().await.into_iter().collect();
        assert_eq!(requests, [url].into(), "{command:?}");
    }
    browser.quit().await;
    std::fs::remove_dir_all(folder).unwrap();
}
