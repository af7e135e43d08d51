//! The verbs: one Lua script each, sent once per server and then named by its digest.

use std::sync::LazyLock;

use redis::Cmd;

use crate::config::Layout;

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
    ($name:ident, $($file:literal)+, fenced $fenced:literal, counts $counts:literal) => {
        pub(crate) static $name: Script = Script {
            source: concat!($(include_str!(concat!("scripts/", $file))),+),
            digest: LazyLock::new(|| redis::Script::new($name.source).get_hash().to_owned()),
            fenced: $fenced,
            counts: $counts,
        };
    };
}

script!(ACQUIRE, "prelude.lua" "number.lua" "acquire.lua", fenced true, counts true);
script!(RENEW, "prelude.lua" "renew.lua", fenced false, counts true);
script!(RELEASE, "prelude.lua" "release.lua", fenced false, counts false);
script!(RENEW_PART, "prelude.lua" "renew_part.lua", fenced false, counts true);
script!(RELEASE_PART, "prelude.lua" "release_part.lua", fenced false, counts false);
script!(RAISE, "prelude.lua" "raise.lua", fenced false, counts true);
script!(INSPECT, "prelude.lua" "inspect.lua", fenced false, counts false);
script!(EVICT, "prelude.lua" "evict.lua", fenced false, counts false);
script!(COUNT, "prelude.lua" "count.lua", fenced false, counts false);
script!(PLAIN_ACQUIRE, "plain.lua" "number.lua" "plain_acquire.lua", fenced true, counts true);
script!(PLAIN_RENEW, "plain.lua" "plain_renew.lua", fenced false, counts true);
script!(PLAIN_RELEASE, "plain.lua" "plain_release.lua", fenced false, counts false);
script!(PLAIN_INSPECT, "plain.lua" "plain_inspect.lua", fenced false, counts false);
script!(GATE_LOOK, "gate.lua" "gate_look.lua", fenced false, counts false);
script!(GATE_OPEN, "gate.lua" "gate_open.lua", fenced false, counts false);
/// Without the common part, which already fails where a right is missing.
pub(crate) static PROBE: Script = Script {
    source: include_str!("scripts/probe.lua"),
    digest: LazyLock::new(|| redis::Script::new(PROBE.source).get_hash().to_owned()),
    fenced: false,
    counts: false,
};

/// The same for the plain layout.
pub(crate) static PLAIN_PROBE: Script = Script {
    source: include_str!("scripts/plain_probe.lua"),
    digest: LazyLock::new(|| redis::Script::new(PLAIN_PROBE.source).get_hash().to_owned()),
    fenced: false,
    counts: false,
};

/// Those of a line: loaded on every new connection. Those of a gate and of a slot that moves are not: they are rare, and
/// loaded when missed.
static LINE: [&Script; 8] = [&ACQUIRE, &RENEW, &RELEASE, &RAISE, &INSPECT, &EVICT, &COUNT, &PROBE];

/// Those of the plain layout.
static PLAIN: [&Script; 5] = [&PLAIN_ACQUIRE, &PLAIN_RENEW, &PLAIN_RELEASE, &PLAIN_INSPECT, &PLAIN_PROBE];

/// What a client of this layout calls.
pub(crate) fn of(layout: Layout) -> &'static [&'static Script] {
    match layout {
        Layout::Line => &LINE,
        Layout::Plain => &PLAIN,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lua gives `%d` a C long: on a 32-bit server a time in milliseconds overflows it.
    #[test]
    fn no_number_is_written_as_a_c_long() {
        let all = [&LINE[..], &PLAIN, &[&GATE_LOOK, &GATE_OPEN, &RENEW_PART, &RELEASE_PART]].concat();
        for script in all {
            assert!(!script.source.contains("'%d"), "{}", script.source);
        }
    }
}
