//! Hosts of their own on one machine: network namespaces on a bridge, inside a namespace that only the test sees.

use std::net::Ipv4Addr;
use std::process::Command;

use rustix::process::geteuid;

use crate::ensure;
use crate::verdict::Verdict;

const INSIDE: &str = "ONELOCK_ON_HOSTS_OF_ITS_OWN";

/// Runs this test program's test `name` again where networks may be laid out, unless it already is there. Whether it is: if
/// not, the test has been run, and passed.
///
/// # Errors
/// When the test failed there, or this user may not have namespaces.
pub fn is_inside(name: &str) -> Verdict<bool> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(true);
    }
    let mut command = Command::new("unshare");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--mount", "--propagation", "private", "--"]).arg(std::env::current_exe()?);
    let status = command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").status()?;
    ensure!(
        status.success(),
        "`{name}` on hosts of its own: {status} (it needs root or user namespaces, and `ip` of iproute2)"
    );
    Ok(false)
}

/// Hosts that reach each other and this process.
#[derive(Debug)]
pub struct Hosts(u8);

impl Hosts {
    /// Lays out so many hosts. Once in a process; they end with it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn lay_out(count: u8) -> Verdict<Self> {
        run("mount -t tmpfs none /run")?;
        run("mkdir -p /run/netns")?;
        run("ip link set lo up")?;
        run("ip link add hosts type bridge")?;
        run("ip addr add 10.77.0.254/24 dev hosts")?;
        run("ip link set hosts up")?;
        let hosts = Self(count);
        for i in 0..count {
            let (name, address) = (hosts.name(i), hosts.address(i));
            run(&format!("ip netns add {name}"))?;
            run(&format!("ip link add to-{name} type veth peer name eth0 netns {name}"))?;
            run(&format!("ip link set to-{name} master hosts up"))?;
            run(&format!("ip -n {name} addr add {address}/24 dev eth0"))?;
            run(&format!("ip -n {name} link set eth0 up"))?;
            run(&format!("ip -n {name} link set lo up"))?;
        }
        Ok(hosts)
    }

    /// What `ip netns exec` calls a host.
    #[must_use]
    pub fn name(&self, host: u8) -> String {
        format!("host-{host}")
    }

    /// Where it is reached.
    #[must_use]
    pub fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, host + 1)
    }

    /// Cuts a host off from all others, both ways and without a word; this process still reaches it. Or heals that.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn isolate(&self, host: u8, cut: bool) -> Verdict {
        let verb = if cut { "add" } else { "del" };
        for other in (0..self.0).filter(|other| *other != host) {
            // What it sends vanishes, answers to what it receives too.
            run(&format!("ip -n {} route {verb} blackhole {}/32", self.name(host), self.address(other)))?;
        }
        Ok(())
    }
}

fn run(line: &str) -> Verdict {
    let mut words = line.split(' ');
    super::run(Command::new(words.next().unwrap_or_default()).args(words))
}
