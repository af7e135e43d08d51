//! The verbs: one Lua script each, sent once per server and then named by its digest.

use std::sync::LazyLock;

use redis::Cmd;

use crate::config::Layout;

/// A script.
pub(crate) struct Script {
    /// Its text and the digest of that.
    text: LazyLock<(String, String)>,
    /// Whether it takes numbers: then a server that can be replaced gets where those of its epoch start.
    pub(crate) fenced: bool,
    /// Whether replicas must have what it wrote, where that is asked for.
    pub(crate) counts: bool,
}

macro_rules! scripts {
    ($($name:ident $file:literal $fenced:literal $counts:literal;)+) => {
        $(pub(crate) static $name: Script = Script {
            text: LazyLock::new(|| whole(include_str!(concat!("scripts/", $file, ".lua")))),
            fenced: $fenced,
            counts: $counts,
        };)+
        #[cfg(test)]
        const FILES: &[&str] = &[$(include_str!(concat!("scripts/", $file, ".lua"))),+];
    };
}

// Its file, whether it is fenced, whether it counts.
scripts! {
    ACQUIRE "acquire" true true;
    RENEW "renew" false true;
    RENEW_PART "renew_part" false true;
    RELEASE "release" false false;
    RELEASE_PART "release_part" false false;
    RAISE "raise" false true;
    INSPECT "inspect" false false;
    EVICT "evict" false false;
    COUNT "count" false false;
    PROBE "probe" false false;
    PLAIN_ACQUIRE "plain_acquire" true true;
    PLAIN_RENEW "plain_renew" false true;
    PLAIN_RELEASE "plain_release" false false;
    PLAIN_INSPECT "plain_inspect" false false;
    GATE_LOOK "gate_look" false false;
    GATE_OPEN "gate_open" false false;
}

/// What stands in the place of a line `--@name`. A verb that is done before it comes to one spares the server its functions.
const PARTS: [(&str, &str); 6] = [
    ("--@shared", include_str!("scripts/shared.lua")),
    ("--@number", include_str!("scripts/number.lua")),
    ("--@line", include_str!("scripts/line.lua")),
    ("--@each", include_str!("scripts/each.lua")),
    ("--@plain", include_str!("scripts/plain.lua")),
    ("--@gate", include_str!("scripts/gate.lua")),
];

/// The whole script, and its digest.
fn whole(verb: &str) -> (String, String) {
    let part = |line| PARTS.iter().find(|(name, _)| *name == line).map_or(line, |(_, text)| *text);
    let text = verb.lines().map(part).collect::<Vec<_>>().join("\n");
    let digest = redis::Script::new(&text).get_hash().to_owned();
    (text, digest)
}

/// Those of a line: loaded on every new connection. Those of a gate and of a slot that moves are not: they are rare, and loaded
/// when missed.
static LINE: [&Script; 8] = [&ACQUIRE, &RENEW, &RELEASE, &RAISE, &INSPECT, &EVICT, &COUNT, &PROBE];
static PLAIN: [&Script; 5] = [&PLAIN_ACQUIRE, &PLAIN_RENEW, &PLAIN_RELEASE, &PLAIN_INSPECT, &PROBE];

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
        command.arg("EVALSHA").arg(&self.text.1).arg(keys);
        command
    }

    /// The command that makes the server know this script.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("SCRIPT").arg("LOAD").arg(&self.text.0);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lua gives `%d` a C long: on a 32-bit server a time in milliseconds overflows it.
    #[test]
    fn no_number_is_written_as_a_c_long() {
        for verb in FILES {
            let (text, _) = whole(verb);
            assert!(!text.contains("'%d") && !text.contains("--@"), "{text}");
        }
    }
}
