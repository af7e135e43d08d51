//! Runs as files.

use std::fs;

use super::sample;
use crate::data::Run;
use crate::report::{json, read};

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    for run in [sample::run(), sample::empty()] {
        fs::write(&path, json(&run).unwrap()).unwrap();
        assert!(read(&path).unwrap() == run);
    }
}

#[test]
fn another_format_is_refused_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    fs::write(&path, "{\"format\": 7, \"whatever\": []}").unwrap();
    let told = read(&path).unwrap_err().to_string();
    assert!(told.contains("format 7") && told.contains("run.json"), "{told}");
}

#[test]
fn what_is_no_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    for (json, why) in [("", "not a run"), ("[]", "not a run"), ("{\"format\": 2}", "not a run")] {
        fs::write(&path, json).unwrap();
        let told = read(&path).unwrap_err().to_string();
        assert!(told.contains(why) && told.contains("run.json"), "{json}: {told}");
    }
    assert!(read(folder.path().join("nothing")).unwrap_err().to_string().contains("nothing"));
}

#[test]
fn a_figure_that_is_no_number_is_not_written() {
    let change: [fn(&mut Run); 2] = [
        |run| run.machine.load = f64::INFINITY,
        |run| run.outcomes[0].figures.values_mut().for_each(|figure| figure.most = f64::NAN),
    ];
    for change in change {
        let mut run = sample::run();
        change(&mut run);
        let told = json(&run).unwrap_err().to_string();
        assert!(told.contains("no number"), "{told}");
    }
}
