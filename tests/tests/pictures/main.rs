//! The pictures of the documentation, each drawn from a run of the library whose clock the test
//! sets. The committed files are what these runs draw.

#[path = "../common/mod.rs"]
mod common;

mod algorithms;
mod boundary;
mod fleet;
mod request;
mod run;
mod svg;

use std::path::PathBuf;
use std::{env, fs};

/// With `THROTTLE_WRITE_PICTURES=1` it writes the files, and fails all the same: look at them, and
/// run it again.
#[tokio::test]
async fn committed_pictures_are_drawn_from_these_runs() {
    let pictures = [
        (
            "throttle-core/src/algorithm/algorithms.svg",
            algorithms::picture(),
        ),
        (
            "throttle-core/src/algorithm/boundary.svg",
            boundary::picture(),
        ),
        (
            "throttle-tower/src/guide/request.svg",
            request::picture().await,
        ),
        ("throttle-tower/src/guide/fleet.svg", fleet::picture().await),
    ];
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut stale = Vec::new();
    for (path, picture) in pictures {
        let file = root.join(path);
        if fs::read_to_string(&file).ok().as_ref() != Some(&picture) {
            stale.push(path);
            if env::var_os("THROTTLE_WRITE_PICTURES").is_some() {
                fs::write(file, picture).unwrap();
            }
        }
    }
    let remedy =
        "THROTTLE_WRITE_PICTURES=1 cargo test -p throttle-tests --all-features --test pictures";
    assert!(
        stale.is_empty(),
        "not current: {stale:?}; write them with {remedy}"
    );
}

/// As WCAG 2.2 has it, for text.
#[test]
#[allow(clippy::float_arithmetic, reason = "of colours")]
fn every_colour_of_text_has_a_contrast_of_at_least_4_5() {
    let light = |colour: [u8; 3]| {
        let linear = |part: u8| (f64::from(part) / 255.0 + 0.055) / 1.055;
        let [red, green, blue] = colour.map(|part| linear(part).powf(2.4));
        0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
    };
    let [ground, _, texts @ ..] = svg::COLOURS;
    for (name, on_light, on_dark) in texts {
        let contrasts = [
            light(ground.1) / light(on_light),
            light(on_dark) / light(ground.2),
        ];
        assert!(
            contrasts.iter().all(|contrast| *contrast >= 4.5),
            "{name}: {contrasts:?}"
        );
    }
}
