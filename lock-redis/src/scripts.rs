//! The verbs: one Lua script each, sent once per server and then named by its digest.

use std::sync::LazyLock;

use redis::Cmd;

/// A script and its digest.
pub(crate) struct Script {
    source: &'static str,
    digest: LazyLock<String>,
    /// Whether it takes numbers: then a server that can be replaced is told where those of its epoch start.
    pub(crate) fenced: bool,
    /// Whether replicas must have what it wrote, where that is asked for.
    pub(crate) counts: bool,
}

macro_rules! script {
    ($name:ident, $file:literal, fenced $fenced:literal, counts $counts:literal) => {
        pub(crate) static $name: Script = Script {
            source: concat!(include_str!("scripts/common.lua"), include_str!(concat!("scripts/", $file))),
            digest: LazyLock::new(|| redis::Script::new($name.source).get_hash().to_owned()),
            fenced: $fenced,
            counts: $counts,
        };
    };
}

script!(ACQUIRE, "acquire.lua", fenced true, counts true);
script!(RENEW, "renew.lua", fenced false, counts true);
script!(RELEASE, "release.lua", fenced false, counts false);
script!(RAISE, "raise.lua", fenced true, counts false);
script!(INSPECT, "inspect.lua", fenced false, counts false);
script!(EVICT, "evict.lua", fenced false, counts false);
script!(COUNT, "count.lua", fenced false, counts false);
/// Without the common part, which already fails where a right is missing.
pub(crate) static PROBE: Script = Script {
    source: include_str!("scripts/probe.lua"),
    digest: LazyLock::new(|| redis::Script::new(PROBE.source).get_hash().to_owned()),
    fenced: false,
    counts: false,
};

/// All of them: loaded on every new connection.
pub(crate) static ALL: [&Script; 8] = [&ACQUIRE, &RENEW, &RELEASE, &RAISE, &INSPECT, &EVICT, &COUNT, &PROBE];

impl Script {
    /// Starts a call: the keys are added next, as many as said here, and then the arguments.
    pub(crate) fn call(&self, keys: usize) -> Cmd {
        let mut command = Cmd::with_capacity(keys + 10, 64 + keys * 48);
        command.arg("EVALSHA").arg(&*self.digest).arg(keys);
        command
    }

    /// The command that makes the server know this script.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("SCRIPT").arg("LOAD").arg(self.source);
        command
    }
}
