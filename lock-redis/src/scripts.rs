//! The verbs: one Lua script each, sent once per server and then named by its digest.

use std::sync::LazyLock;

use redis::Cmd;

/// A script.
pub(crate) struct Script {
    /// Its text and the digest of that.
    text: LazyLock<(String, String)>,
    /// Whether it takes numbers: then a server that can be replaced gets where those of its epoch start.
    pub(crate) fenced: bool,
    /// Whether replicas must have what it wrote, where that is asked for.
    pub(crate) counts: bool,
    /// Whether it is asked again while only some of its keys are on the node: else that is its answer.
    pub(crate) patient: bool,
}

macro_rules! scripts {
    ($($name:ident $file:literal $fenced:literal $counts:literal $patient:literal;)+) => {
        $(pub(crate) static $name: Script = Script {
            text: LazyLock::new(|| whole(include_str!(concat!("scripts/", $file, ".lua")))),
            fenced: $fenced,
            counts: $counts,
            patient: $patient,
        };)+
        /// Loaded on every new connection.
        pub(crate) static ALL: &[&Script] = &[$(&$name),+];
    };
}

// Its file, whether it is fenced, whether it counts, whether it is patient: what is renewed, released or listed is asked again anyhow.
scripts! {
    ACQUIRE "acquire" true true true;
    RENEW "renew" false true false;
    RENEW_PART "renew_part" false true false;
    RELEASE "release" false false false;
    RELEASE_PART "release_part" false false false;
    RAISE "raise" false true true;
    INSPECT "inspect" false false true;
    EVICT "evict" false true true;
    COUNT "count" false false false;
    PROBE "probe" false false true;
    PLAIN_ACQUIRE "plain_acquire" true true true;
    PLAIN_RENEW "plain_renew" false true false;
    PLAIN_RELEASE "plain_release" false false false;
    PLAIN_EVICT "plain_release" false true true;
    PLAIN_INSPECT "plain_inspect" false false true;
    GATE "gate" false false true;
}

/// A script, and how many of a line's keys it takes.
pub(crate) type Way = (&'static Script, usize);

/// The scripts of a layout.
pub(crate) struct Verbs {
    pub(crate) acquire: &'static Script,
    /// The first, or each time that only some of the keys are there the next: in a cluster, while a slot is on its way.
    pub(crate) renew: &'static [Way],
    pub(crate) release: &'static [Way],
    pub(crate) evict: &'static Script,
    pub(crate) inspect: &'static Script,
}

pub(crate) static LINE: Verbs = Verbs {
    acquire: &ACQUIRE,
    renew: &[(&RENEW, 4), (&RENEW_PART, 1), (&RENEW_PART, 2)],
    release: &[(&RELEASE, 4), (&RELEASE_PART, 1), (&RELEASE_PART, 2)],
    evict: &EVICT,
    inspect: &INSPECT,
};
pub(crate) static PLAIN: Verbs = Verbs {
    acquire: &PLAIN_ACQUIRE,
    renew: &[(&PLAIN_RENEW, 1)],
    release: &[(&PLAIN_RELEASE, 1)],
    evict: &PLAIN_EVICT,
    inspect: &PLAIN_INSPECT,
};

/// What stands in the place of a line `--@name`. A verb that is done before it comes to one spares the server its functions.
const PARTS: [(&str, &str); 6] = [
    ("--@shared", include_str!("scripts/shared.lua")),
    ("--@number", include_str!("scripts/number.lua")),
    ("--@line", include_str!("scripts/line.lua")),
    ("--@leave", include_str!("scripts/leave.lua")),
    ("--@each", include_str!("scripts/each.lua")),
    ("--@plain", include_str!("scripts/plain.lua")),
];

/// The whole script, and its digest.
fn whole(verb: &str) -> (String, String) {
    let part = |line| PARTS.iter().find(|(name, _)| *name == line).map_or(line, |(_, text)| *text);
    let text = verb.lines().map(part).collect::<Vec<_>>().join("\n");
    let digest = redis::Script::new(&text).get_hash().to_owned();
    (text, digest)
}

impl Script {
    /// A call with these keys: the arguments are added next.
    pub(crate) fn call(&self, keys: &[&str]) -> Cmd {
        let mut command = Cmd::with_capacity(keys.len() + 10, 64 + keys.len() * 48);
        command.arg("EVALSHA").arg(&self.text.1).arg(keys.len()).arg(keys);
        command
    }

    /// The command that makes the server know this script.
    pub(crate) fn load(&self) -> Cmd {
        redis::cmd("SCRIPT").arg("LOAD").arg(&self.text.0).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lua gives `%d` a C long: on a 32-bit server a time in milliseconds overflows it.
    #[test]
    fn no_number_is_written_as_a_c_long() {
        for script in ALL {
            let text = &script.text.0;
            assert!(!text.contains("'%d") && !text.contains("--@"), "{text}");
        }
    }
}
