//! The pictures of the docs, in a real browser.

use std::path::PathBuf;

use throttle_extra::browser::Browser;

/// The colour of the ground, and texts that leave the picture or touch another one.
const LAYOUT: &str = "
    const boxes = [...document.querySelectorAll('text')].map(node => [node.textContent, \
    node.getBBox()]);
    const { width, height } = document.documentElement.viewBox.baseVal;
    const outside = boxes.filter(([, box]) =>
        box.x < 12 || box.y < 12 || box.x + box.width > width - 12 || box.y + box.height > height \
        - 6);
    const touch = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y + 3 < b.y + \
    b.height && b.y + 3 < a.y + a.height;
    const touching = boxes.filter(([, a], n) => boxes.some(([, b], m) => n !== m && touch(a, b)));
    return { texts: boxes.length, ground: getComputedStyle(document.querySelector('rect')).fill,
        wrong: [...outside, ...touching].map(([text]) => text) };";

#[tokio::test]
async fn texts_of_pictures_stay_inside_and_apart_in_both_color_schemes() {
    let browser = Browser::start().await;
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    for path in [
        "throttle-core/src/algorithm/algorithms.svg",
        "throttle-core/src/algorithm/boundary.svg",
        "throttle-tower/src/guide/request.svg",
        "throttle-tower/src/guide/fleet.svg",
    ] {
        for (scheme, ground) in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(13, 17, 23)")] {
            browser.emulate(800, 600, scheme).await;
            browser
                .open(&format!("file://{}", root.join(path).display()))
                .await;
            let found = browser.run(LAYOUT).await;
            assert!(found["texts"].as_u64() > Some(10), "{path}: {found}");
            assert_eq!(found["ground"], ground, "{path}, {scheme}");
            assert!(
                found["wrong"].as_array().unwrap().is_empty(),
                "{path}: {found}"
            );
        }
    }
    assert!(browser.log("browser").await.is_empty());
    browser.quit().await;
}
