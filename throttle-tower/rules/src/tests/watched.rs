//! A file that changes on disk while it is watched.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::sleep;
use std::time::Duration;

use throttle_core::MemoryBackend;

use super::Folder;
use crate::{Change, Handle, Registry, Rules};

fn text(rate: u64) -> String {
    format!(
        "version = 1\n[[limit]]\nname = \"a\"\nby = \"constant\"\ngcra = {{ rate = \"{rate}/s\" }}\n"
    )
}

type Told = Receiver<Result<Change, String>>;

fn live(path: &Path) -> (Handle, Told) {
    let (_, handle) = Rules::from_path(path, Registry::new())
        .unwrap()
        .layer(MemoryBackend::new())
        .unwrap();
    let (sender, told) = mpsc::channel();
    handle.on_reload(move |reloaded| {
        sender
            .send(reloaded.cloned().map_err(ToString::to_string))
            .unwrap();
    });
    (handle, told)
}

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// The rate that is in force after the next attempt.
fn next(told: &Told) -> String {
    match told.recv_timeout(LONG) {
        Ok(Ok(change)) => change.changed[0].new.clone().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn gcra(rate: u64) -> String {
    format!("{{ rate = \"{rate}/s\" }}")
}

#[test]
fn file_that_is_replaced_or_written_is_put_in_force() {
    let folder = Folder::new("written");
    fs::write(folder.file(), text(1)).unwrap();
    let (handle, told) = live(&folder.file());
    let watch = handle.watch().unwrap();
    let new = folder.0.join("new");
    for rate in 2..5 {
        fs::write(&new, text(rate)).unwrap();
        fs::rename(&new, folder.file()).unwrap();
        assert_eq!(next(&told), gcra(rate));
    }
    for rate in 5..8 {
        // In two parts, of which the first is a whole file without limits.
        let mut file = File::create(folder.file()).unwrap();
        file.write_all(b"version = 1\n").unwrap();
        file.sync_all().unwrap();
        sleep(Duration::from_millis(20));
        file.write_all(text(rate).strip_prefix("version = 1\n").unwrap().as_bytes())
            .unwrap();
        assert_eq!(next(&told), gcra(rate));
    }
    fs::remove_file(folder.file()).unwrap();
    let error = told.recv_timeout(LONG).unwrap().unwrap_err();
    assert!(error.contains("cannot be read"), "{error}");
    assert_eq!(handle.status().revision, 7);
    fs::write(folder.file(), text(8)).unwrap();
    assert_eq!(next(&told), gcra(8));
    drop(watch);
}

#[test]
fn replaced_rules_stay_until_a_file_changes() {
    let folder = Folder::new("replaced");
    fs::write(folder.file(), text(1)).unwrap();
    let (handle, told) = live(&folder.file());
    let _watch = handle.watch().unwrap();
    handle.replace(&text(9)).unwrap();
    assert!(told.recv_timeout(LONG).unwrap().is_ok());
    assert_eq!(
        told.recv_timeout(Duration::from_secs(2)),
        Err(RecvTimeoutError::Timeout)
    );
    fs::write(folder.file(), text(2)).unwrap();
    assert!(told.recv_timeout(LONG).unwrap().is_ok());
}

/// Exchanges the link `..data` for one to a folder whose file has this rate.
fn exchange(folder: &Folder, rate: u64) {
    let data = folder.0.join(format!("..{rate}"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("throttle.toml"), text(rate)).unwrap();
    symlink(format!("..{rate}"), folder.0.join("..tmp")).unwrap();
    fs::rename(folder.0.join("..tmp"), folder.0.join("..data")).unwrap();
}

/// As Kubernetes exchanges the files of a `ConfigMap`. Nothing happens to the file's own name, nor
/// in a former folder that stays.
#[test]
fn link_that_is_exchanged_is_followed() {
    for keeps_former in [false, true] {
        let folder = Folder::new(if keeps_former { "kept" } else { "removed" });
        exchange(&folder, 1);
        symlink("..data/throttle.toml", folder.file()).unwrap();
        let (handle, told) = live(&folder.file());
        let _watch = handle.watch().unwrap();
        for rate in 2..6 {
            exchange(&folder, rate);
            if !keeps_former {
                fs::remove_dir_all(folder.0.join(format!("..{}", rate - 1))).unwrap();
            }
            assert_eq!(
                next(&told),
                gcra(rate),
                "keeps the former folder: {keeps_former}"
            );
        }
        assert_eq!(
            handle.status().revision,
            5,
            "keeps the former folder: {keeps_former}"
        );
    }
}

#[test]
fn file_behind_a_link_into_another_folder_is_watched() {
    let (folder, elsewhere) = (Folder::new("link"), Folder::new("target"));
    fs::write(elsewhere.file(), text(1)).unwrap();
    symlink(elsewhere.file(), folder.file()).unwrap();
    let (handle, told) = live(&folder.file());
    let _watch = handle.watch().unwrap();
    fs::write(elsewhere.file(), text(2)).unwrap();
    assert_eq!(next(&told), gcra(2));
    let next_target = Folder::new("next-target");
    fs::write(next_target.file(), text(3)).unwrap();
    // At once, for a file that is missing would be reported.
    symlink(next_target.file(), folder.0.join("link")).unwrap();
    fs::rename(folder.0.join("link"), folder.file()).unwrap();
    assert_eq!(next(&told), gcra(3));
    fs::write(next_target.file(), text(4)).unwrap();
    assert_eq!(
        next(&told),
        gcra(4),
        "the folder that the link leads to now is watched"
    );
}

#[test]
fn mistakes_are_told_once_and_other_files_are_none_of_its_business() {
    let folder = Folder::new("mistake");
    fs::write(folder.file(), text(1)).unwrap();
    let (handle, told) = live(&folder.file());
    let _watch = handle.watch().unwrap();
    fs::write(folder.file(), text(0)).unwrap();
    let error = told.recv_timeout(LONG).unwrap().unwrap_err();
    assert!(error.contains("rate count is 0"), "{error}");
    for name in ["other", "another"] {
        fs::write(folder.0.join(name), text(9)).unwrap();
    }
    assert!(
        told.recv_timeout(Duration::from_secs(2)).is_err(),
        "nothing new"
    );
    fs::write(folder.file(), text(2)).unwrap();
    assert_eq!(next(&told), gcra(2));
    assert_eq!(handle.status().failing_since, None);
}

#[test]
fn change_before_the_watch_is_found_and_one_after_its_end_is_not() {
    let folder = Folder::new("ends");
    fs::write(folder.file(), text(1)).unwrap();
    let (handle, told) = live(&folder.file());
    fs::write(folder.file(), text(2)).unwrap();
    let watch = handle.watch().unwrap();
    assert_eq!(next(&told), gcra(2));
    drop(watch);
    fs::write(folder.file(), text(3)).unwrap();
    assert!(told.recv_timeout(Duration::from_secs(1)).is_err());
    assert_eq!(handle.status().revision, 2);
    let from_text = Rules::from_str("f", &text(1), Registry::new()).unwrap();
    let (_, handle) = from_text.layer(MemoryBackend::new()).unwrap();
    assert!(
        handle
            .watch()
            .unwrap_err()
            .to_string()
            .contains("there is no file to watch")
    );
}
