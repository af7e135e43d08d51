//! Which boot of which host the leases belong to.
//!
//! Leases run on the host's boot clock, which no step of the wall clock moves; the boot id says whether the times in
//! the file were written on the same run of that clock.

use std::path::Path;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result, Timestamp};

/// The boot of the host, and how far this process's view of its clock is shifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Boot {
    /// The kernel's id of this boot: the same in every process on it, in containers too.
    pub(super) id: String,
    /// Nanoseconds that this process's time namespace adds to the boot clock.
    pub(super) shift: i64,
}

impl Boot {
    /// Asks the operating system.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the system tells no boot id, or a container has one of its own: without the
    /// kernel's, times left by an earlier boot could not be distinguished from living leases. The same where the shift cannot be
    /// read.
    pub(super) fn current() -> Result<Self> {
        let boot = boot_id().and_then(|id| match id.trim() {
            "" => Err("the system's boot id is empty".to_owned()),
            id => Ok(Self { id: id.to_owned(), shift: shift(Path::new("/proc/self"))? }),
        });
        let unsupported = |why| format!("{why}; the SQLite store needs it to tell living leases");
        boot.map_err(|why| Error::new(ErrorKind::Unsupported, unsupported(why)))
    }
}

/// A container may run in a time namespace, where the boot clock has an offset; the file keeps the host's own time.
///
/// The kernel shows the offsets of the namespace that the process has for its children, which is its own until it makes one. A
/// process that makes one later goes on with what was read here. A kernel without time namespaces has neither.
fn shift(process: &Path) -> Result<i64, String> {
    let offsets = match std::fs::read_to_string(process.join("timens_offsets")) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        offsets => offsets.map_err(|e| format!("cannot read the shift of this process's clock: {e}"))?,
    };
    // Afterwards, so that no namespace comes in between.
    let namespace = |whose| std::fs::read_link(process.join("ns").join(whose)).ok();
    if namespace("time") == namespace("time_for_children") {
        return Ok(boot_offset(&offsets));
    }
    let why = "this process has made a time namespace for its children, so the kernel does not show the shift of its own clock";
    Err(why.to_owned())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_id() -> Result<String, String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    /// `PROC_SUPER_MAGIC`.
    const PROC: u64 = 0x9FA0;
    let text =
        std::fs::read_to_string(PATH).map_err(|e| format!("cannot read the boot id from {PATH}: {e}"))?;
    // LXC, Incus, Proxmox and systemd-nspawn mount a random id over it, another one in each container. What the host or
    // another container wrote to the file would then look like an earlier boot, and its living locks would be dropped.
    match rustix::fs::statfs(PATH) {
        Ok(stat) if stat.f_type as u64 & 0xFFFF_FFFF == PROC => Ok(text),
        Ok(_) => Err(format!(
            "a file is mounted over {PATH}, so this container has a boot id of its own: unmount it in the container, or \
             use a networked store"
        )),
        Err(e) => Err(format!("cannot tell whether {PATH} is the kernel's: {e}")),
    }
}

/// `kern.boottime` would do no good here: it moves when the wall clock is stepped. Other systems have neither name.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_id() -> Result<String, String> {
    let mac = cfg!(target_os = "macos");
    let (program, key) =
        if mac { ("/usr/sbin/sysctl", "kern.bootsessionuuid") } else { ("/sbin/sysctl", "kern.boot_id") };
    match std::process::Command::new(program).args(["-n", key]).output() {
        Ok(out) if out.status.success() => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        Ok(out) => Err(format!("`{program} -n {key}` ended with {}", out.status)),
        Err(e) => Err(format!("cannot run {program} for the boot id: {e}")),
    }
}

/// Nanoseconds, of the line `boottime <seconds> <nanoseconds>`.
fn boot_offset(offsets: &str) -> i64 {
    let of_boot = offsets.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or_default();
    let mut numbers = of_boot.split_whitespace().map(|number| number.parse().unwrap_or(0));
    let (seconds, nanos): (i64, i64) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Nanoseconds of the host's boot clock.
pub(super) fn nanos(time: Timestamp) -> i64 {
    i64::try_from(time.since_origin().as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn time(nanos: i64) -> Timestamp {
    Timestamp::from_origin(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_keeps_its_id() {
        assert_eq!(Boot::current().unwrap(), Boot::current().unwrap());
    }

    #[test]
    fn the_offset_of_a_time_namespace_for_children_is_not_taken() {
        let process = tempfile::tempdir().unwrap();
        let link = |whose, to| std::os::unix::fs::symlink(to, process.path().join("ns").join(whose)).unwrap();
        std::fs::write(process.path().join("timens_offsets"), "boottime 5 0\n").unwrap();
        // As of a kernel without time namespaces.
        assert_eq!(shift(process.path()).unwrap(), 5_000_000_000);
        std::fs::create_dir(process.path().join("ns")).unwrap();
        link("time", "time:[1]");
        link("time_for_children", "time:[2]");
        shift(process.path()).unwrap_err();
        std::fs::remove_file(process.path().join("ns/time")).unwrap();
        link("time", "time:[2]");
        assert_eq!(shift(process.path()).unwrap(), 5_000_000_000);
    }

    /// As where a policy denies it, or no descriptor is left.
    #[test]
    fn an_offset_that_cannot_be_read_is_not_none() {
        let process = tempfile::tempdir().unwrap();
        assert_eq!(shift(process.path()), Ok(0), "a kernel without time namespaces");
        std::fs::create_dir(process.path().join("timens_offsets")).unwrap();
        shift(process.path()).unwrap_err();
    }

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        assert_eq!(boot_offset("monotonic           0         0\nboottime            0         0\n"), 0);
        assert_eq!(boot_offset("monotonic  5 0\nboottime  86400  7\n"), 86_400_000_000_007);
        assert_eq!(boot_offset("boottime -2 0"), -2_000_000_000);
        assert_eq!(boot_offset("nonsense"), 0);
    }
}
