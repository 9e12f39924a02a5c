//! The store by itself: what is kept is found by its whole key, and whatever is wrong with a file, it is as good as none.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Cache, Key, Part, Report, Store};

fn key(graph: &str, options: &str) -> Key {
    Key(vec![Part::visible("graph", graph.into()), Part::visible("options", options.into())])
}

fn store(folder: &Path, limit: u64) -> Store {
    Store::open(&Cache::In { folder: folder.into(), limit: Some(limit) }).unwrap()
}

fn insert(store: &Store, key: &Key, bytes: &[u8]) {
    store.insert(key, ("net", "cpu", "default"), &[bytes, b"", b"second"]).unwrap();
}

/// The first section under a key.
fn get(store: &Store, key: &Key) -> Option<Vec<u8>> {
    store.get(key, |sections| {
        assert_eq!(sections[1..], [b"" as &[u8], b"second"]);
        Ok(sections[0].to_vec())
    })
}

fn file(store: &Store, key: &Key) -> std::path::PathBuf {
    store.folder().join(format!("{}.entry", key.id()))
}

fn used(store: &Store, key: &Key, seconds: u64) {
    let file = fs::File::options().append(true).open(file(store, key)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

#[test]
fn what_is_kept_is_found_by_its_whole_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("deep").join("er"), 1 << 20);
    assert_eq!(get(&store, &key("g", "o")), None);
    insert(&store, &key("g", "o"), b"code");
    assert_eq!(get(&store, &key("g", "o")).unwrap(), b"code");
    for other in [key("h", "o"), key("g", "p"), key("go", ""), key("", "go")] {
        assert_eq!(get(&store, &other), None);
    }
    insert(&store, &key("g", "o"), b"newer");
    assert_eq!(get(&store, &key("g", "o")).unwrap(), b"newer");
    let [entry] = &store.entries()[..] else { panic!("one entry") };
    assert_eq!((&*entry.program, &*entry.backend, &*entry.mode), ("net", "cpu", "default"));
    assert_eq!(entry.bytes, fs::metadata(file(&store, &entry.key)).unwrap().len());
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), 1 << 20);
    let key = key("g", "o");
    insert(&store, &key, b"some machine code");
    let path = file(&store, &key);
    let whole = fs::read(&path).unwrap();
    let changed = (0..whole.len()).map(|at| {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        changed
    });
    let cut = (0..whole.len()).map(|end| whole[..end].to_vec());
    let longer = [whole.clone(), vec![0]].concat();
    for (n, damaged) in changed.chain(cut).chain([longer, b"something else".to_vec()]).enumerate() {
        fs::write(&path, damaged).unwrap();
        assert!(store.look(&key) != Ok(true), "damage {n}");
        assert_eq!(get(&store, &key), None, "damage {n}");
        assert!(!path.exists(), "damage {n}");
    }
    insert(&store, &key, b"anew");
    assert_eq!(get(&store, &key).unwrap(), b"anew");
}

#[test]
fn an_entry_of_another_key_or_version_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), 1 << 20);
    let (one, other) = (key("g", "o"), key("h", "o"));
    insert(&store, &one, b"of g");
    fs::rename(file(&store, &one), file(&store, &other)).unwrap();
    assert_eq!(get(&store, &other), None);
    assert!(!file(&store, &other).exists());
    // A file of an older version, which would be whole otherwise.
    insert(&store, &one, b"of g");
    let mut bytes = fs::read(file(&store, &one)).unwrap();
    bytes[8..12].copy_from_slice(&0u32.to_le_bytes());
    fs::write(file(&store, &one), bytes).unwrap();
    assert!(store.entries().is_empty());
    assert_eq!(get(&store, &one), None);
}

#[test]
fn the_longest_unused_go_first_and_the_bound_holds() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<Key> = (0..8).map(|n| key(&n.to_string(), "o")).collect();
    let roomy = store(folder.path(), 1 << 20);
    insert(&roomy, &keys[0], &[0; 1000]);
    let one = fs::metadata(file(&roomy, &keys[0])).unwrap().len();
    let store = store(folder.path(), one * 4);
    for (n, key) in keys.iter().enumerate().take(4) {
        insert(&store, key, &[n as u8; 1000]);
        used(&store, key, n as u64);
    }
    // Used just now.
    assert!(get(&store, &keys[0]).is_some());
    for key in &keys[4..6] {
        insert(&store, key, &[9; 1000]);
    }
    let left: Vec<bool> = keys.iter().map(|k| file(&store, k).exists()).collect();
    assert_eq!(left, [true, false, false, true, true, true, false, false]);
    assert!(store.entries().iter().map(|e| e.bytes).sum::<u64>() <= store.limit());
    // What is larger than the bound is not kept, and takes nothing else's place.
    let large = vec![0; 8000];
    assert!(store.insert(&keys[7], ("net", "cpu", "default"), &[&large]).is_err());
    assert_eq!(store.entries().len(), 4);
}

#[test]
fn many_writers_and_readers_see_whole_entries() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), 60_000);
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..60u8 {
                    let key = key(&(n % 6).to_string(), "o");
                    insert(store, &key, &[writer; 9000]);
                    if let Some(found) = get(store, &key) {
                        assert_eq!(found.len(), 9000);
                        assert!(found.iter().all(|b| *b == found[0]), "two writers in one entry");
                    }
                }
            });
        }
    });
    let total: u64 =
        fs::read_dir(store.folder()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(total <= store.limit(), "{total}");
    assert!(store.entries().len() >= 5);
}

#[test]
fn clearing_spares_what_was_used_lately() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), 1 << 20);
    let (old, new) = (key("old", "o"), key("new", "o"));
    insert(&store, &old, b"1");
    used(&store, &old, 1000);
    insert(&store, &new, b"2");
    assert_eq!(store.clear(Some(Duration::from_secs(3600))).unwrap().files, 1);
    assert!(get(&store, &old).is_none() && get(&store, &new).is_some());
    assert_eq!(store.clear(None).unwrap().files, 1);
    assert!(store.entries().is_empty());
}

#[cfg(unix)]
#[test]
fn folders_that_everybody_may_write_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let open = Store::open(&cache).unwrap();
    insert(&open, &key("g", "o"), b"code");
    let allow = |mode| fs::set_permissions(open.folder(), fs::Permissions::from_mode(mode)).unwrap();
    allow(0o777);
    let why = Store::open(&cache).unwrap_err();
    assert!(why.contains("writable by every user"), "{why}");
    assert!(open.insert(&key("h", "o"), ("net", "cpu", "default"), &[b"x"]).is_err());
    allow(0o700);
    assert!(Store::open(&cache).is_ok());
    assert!(Store::open(&Cache::Off).is_err());
}

#[test]
fn a_miss_names_the_parts_that_differ_from_the_nearest_entry() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), 1 << 20);
    let report = |key: Key| super::report::report(&store, key);
    assert!(matches!(report(key("g", "o")), Report::Miss { nearest: None, .. }));
    insert(&store, &key("g", "o"), b"1");
    insert(&store, &key("h", "p"), b"2");
    assert!(matches!(report(key("g", "o")), Report::Hit(_)));
    for (wanted, part, entry) in [(key("g", "p"), "options", "o"), (key("i", "p"), "graph", "h")] {
        let Report::Miss { nearest: Some((_, differences)), damaged: None, .. } = report(wanted) else {
            panic!("a miss with a nearest entry")
        };
        let [d] = &differences[..] else { panic!("{differences:?}") };
        assert_eq!((&*d.part, &*d.entry), (part, entry));
    }
    fs::write(file(&store, &key("g", "o")), b"nothing").unwrap();
    assert!(matches!(report(key("g", "o")), Report::Miss { damaged: Some(_), .. }));
}
