//! Which boot of which host the leases belong to.
//!
//! Leases run on the host's boot clock, which no step of the wall clock moves; the boot id says whether the times in
//! the file were written on the same run of that clock.

use onelock_core::{Error, ErrorKind, Result};

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
    /// kernel's, times left by an earlier boot could not be distinguished from living leases.
    pub(super) fn current() -> Result<Self> {
        let id = boot_id()?;
        if id.is_empty() {
            return Err(unsupported("the system's boot id is empty".into()));
        }
        Ok(Self { id, shift: time_namespace_shift() })
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_id() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    /// `PROC_SUPER_MAGIC`.
    const PROC: u64 = 0x9FA0;
    let text = std::fs::read_to_string(PATH)
        .map_err(|e| unsupported(format!("cannot read the boot id from {PATH}: {e}")))?;
    // LXC, Incus, Proxmox and systemd-nspawn mount a random id over it, another one in each container. What the host or
    // another container wrote to the file would then look like an earlier boot, and its living locks would be dropped.
    match rustix::fs::statfs(PATH) {
        Ok(stat) if stat.f_type as u64 & 0xFFFF_FFFF == PROC => Ok(text.trim().to_owned()),
        Ok(_) => Err(unsupported(format!(
            "a file is mounted over {PATH}, so this container has a boot id of its own: unmount it in the container, or \
             use a networked store"
        ))),
        Err(e) => Err(unsupported(format!("cannot tell whether {PATH} is the kernel's: {e}"))),
    }
}

/// `kern.boottime` would do no good here: it moves when the wall clock is stepped.
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
fn boot_id() -> Result<String> {
    #[cfg(target_os = "macos")]
    const COMMAND: (&str, &str) = ("/usr/sbin/sysctl", "kern.bootsessionuuid");
    #[cfg(target_os = "freebsd")]
    const COMMAND: (&str, &str) = ("/sbin/sysctl", "kern.boot_id");
    let (program, key) = COMMAND;
    match std::process::Command::new(program).args(["-n", key]).output() {
        Ok(out) if out.status.success() => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
        Ok(out) => Err(unsupported(format!("`{program} -n {key}` ended with {}", out.status))),
        Err(e) => Err(unsupported(format!("cannot run {program} for the boot id: {e}"))),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd")))]
fn boot_id() -> Result<String> {
    Err(unsupported("this operating system tells no boot id".into()))
}

/// A container may run in a time namespace, where the boot clock has an offset; the file keeps the host's own time.
fn time_namespace_shift() -> i64 {
    std::fs::read_to_string("/proc/self/timens_offsets").map_or(0, |text| boot_offset(&text))
}

fn boot_offset(offsets: &str) -> i64 {
    let parse = |line: &str| -> Option<i64> {
        let mut words = line.split_whitespace();
        (words.next()? == "boottime").then_some(())?;
        let seconds: i64 = words.next()?.parse().ok()?;
        let nanos: i64 = words.next()?.parse().ok()?;
        Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    };
    offsets.lines().find_map(parse).unwrap_or(0)
}

fn unsupported(text: String) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{text}; the SQLite store needs it to tell living leases"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_keeps_its_id() {
        assert_eq!(Boot::current().unwrap(), Boot::current().unwrap());
    }

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        assert_eq!(boot_offset("monotonic           0         0\nboottime            0         0\n"), 0);
        assert_eq!(boot_offset("monotonic  5 0\nboottime  86400  7\n"), 86_400_000_000_007);
        assert_eq!(boot_offset("boottime -2 0"), -2_000_000_000);
        assert_eq!(boot_offset("nonsense"), 0);
    }
}
