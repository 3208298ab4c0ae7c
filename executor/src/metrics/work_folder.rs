//! Size of the work folder.

use std::fs;
use std::path::Path;

/// Returns the size of the files below a folder, in bytes. Links are not followed, and files that go meanwhile are left
/// out.
pub(super) fn bytes(folder: &Path) -> u64 {
    let mut folders = vec![folder.to_owned()];
    let mut bytes = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            // Of a link, this is about the link itself.
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) if found.is_file() => bytes += found.len(),
                _ => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_below_count_and_links_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let (work, other) = (dir.path().join("work"), dir.path().join("other"));
        for folder in [&work.join("job/1"), &other] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("data"), [0_u8; 100]).unwrap();
        }
        fs::write(work.join("data"), [0_u8; 7]).unwrap();
        symlink(&other, work.join("linked")).unwrap();
        assert_eq!(bytes(&work), 107);
        assert_eq!(bytes(&dir.path().join("none")), 0);
    }
}
