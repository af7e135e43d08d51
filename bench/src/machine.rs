//! What is known of the machine.

use std::fs::read_to_string;

use crate::data::Machine;

/// The machine as it is now. What cannot be found out is empty or zero.
#[must_use]
pub fn machine() -> Machine {
    let of = |file: &str, key: &str| {
        let text = read_to_string(file).unwrap_or_default();
        text.lines().find_map(|line| {
            let (found, value) = line.split_once([':', '='])?;
            (found.trim() == key).then(|| value.trim().trim_matches('"').to_owned())
        })
    };
    let memory = of("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let load = read_to_string("/proc/loadavg").unwrap_or_default();
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = of("/etc/os-release", "PRETTY_NAME").unwrap_or_else(|| "Linux".into());
    Machine {
        cpu: of("/proc/cpuinfo", "model name").or_else(|| of("/proc/cpuinfo", "Model")).unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory: memory.unwrap_or_default() * 1024,
        system: format!("{system}, kernel {}", kernel.trim()),
        load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_known() {
        let machine = super::machine();
        assert!(machine.cores > 0 && machine.memory > 0 && !machine.system.is_empty(), "{machine:?}");
    }
}
