//! Where runs have their folders: places of this user's, in memory if possible.

use std::env;
use std::fs::{self, DirBuilder};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes of the longest path of a socket, without its end.
const LONGEST: usize = 107;
/// Bytes that a run's name and a socket's take at most.
const NAMES: usize = "/4194304-99/4194304.sock".len();

/// The places in which a run may be made, the best first.
pub(super) fn wanted() -> Vec<PathBuf> {
    let own = format!("gpuheap-{}", user());
    let mut places = Vec::new();
    if let Some(folder) = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute()) {
        places.push(folder.join("gpuheap"));
    }
    places.push(Path::new("/dev/shm").join(&own));
    for folder in [env::temp_dir(), PathBuf::from("/tmp")] {
        let place = folder.join(&own);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// The places in which there may be runs, those of other sessions included. Only what is this user's own counts.
pub(super) fn known() -> Vec<PathBuf> {
    let mut places = wanted();
    let session = PathBuf::from(format!("/run/user/{}/gpuheap", user()));
    if !places.contains(&session) {
        places.push(session);
    }
    places.retain(|place| is_own(place).is_ok());
    places
}

/// The user, by number.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes the place if it is not there. The error says in words what is wrong with it.
pub(super) fn prepare(place: &Path) -> Result<(), String> {
    let bytes = place.as_os_str().as_bytes();
    if let Some(sign) = bytes.iter().find(|byte| b":;$\n".contains(byte)) {
        return Err(format!(
            "its path has a `{}`, which means something in search paths",
            char::from(*sign).escape_debug()
        ));
    }
    if bytes.len() + NAMES > LONGEST {
        return Err("its path is too long for a socket".to_owned());
    }
    if !place.is_absolute() {
        return Err("it is no absolute path".to_owned());
    }
    match DirBuilder::new().mode(0o700).create(place) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.to_string()),
        _ => is_own(place),
    }
}

/// Whether it is a folder that belongs to this user and that nobody else can enter.
fn is_own(place: &Path) -> Result<(), String> {
    let found = fs::symlink_metadata(place).map_err(|error| error.to_string())?;
    if !found.is_dir() {
        return Err("it is no folder".to_owned());
    }
    if found.uid() != user() {
        return Err(format!("it belongs to user {}", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!("others can enter it: its mode is {:o}", found.mode() & 0o777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_place_is_this_user_s_alone_or_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("gpuheap");
        assert_eq!((prepare(&place), prepare(&place)), (Ok(()), Ok(())));
        assert_eq!(fs::metadata(&place).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&place, Permissions::from_mode(0o750)).unwrap();
        assert_eq!(prepare(&place), Err("others can enter it: its mode is 750".to_owned()));
        let (link, file) = (folder.path().join("link"), folder.path().join("file"));
        symlink(folder.path(), &link).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(prepare(&link), Err("it is no folder".to_owned()));
        assert_eq!(prepare(&file), Err("it is no folder".to_owned()));
        let error = |path: &str| prepare(Path::new(path)).unwrap_err();
        assert!(error("/nowhere/gpuheap").contains("No such file"));
        assert!(error("/tmp/a:b").contains("`:`"));
        assert!(error(&format!("/tmp/{}", "x".repeat(100))).contains("too long"));
    }
}
