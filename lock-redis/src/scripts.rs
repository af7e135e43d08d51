//! The verbs: one Lua script each, sent once per server and then named by its digest.

use std::sync::LazyLock;

use redis::Cmd;

/// A script and its digest.
pub(crate) struct Script {
    source: &'static str,
    digest: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(crate) static $name: Script = Script {
            source: concat!(include_str!("scripts/common.lua"), include_str!(concat!("scripts/", $file))),
            digest: LazyLock::new(|| redis::Script::new($name.source).get_hash().to_owned()),
        };
    };
}

script!(ACQUIRE, "acquire.lua");
script!(RENEW, "renew.lua");
script!(RELEASE, "release.lua");
script!(RAISE, "raise.lua");
script!(INSPECT, "inspect.lua");
script!(EVICT, "evict.lua");
script!(COUNT, "count.lua");
/// Without the common part, which already fails where a right is missing.
pub(crate) static PROBE: Script = Script {
    source: include_str!("scripts/probe.lua"),
    digest: LazyLock::new(|| redis::Script::new(PROBE.source).get_hash().to_owned()),
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
