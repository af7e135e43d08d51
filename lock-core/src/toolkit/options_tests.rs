//! What `options!` makes.

use serde::{Deserialize, Serialize};

use super::*;
use crate::{ErrorKind, Secret, StoreUrl};

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    #[default]
    One,
    TheOther,
}

options! {
    /// A store.
    struct Example {
        /// Where.
        pub host: String = "here".into(),
        /// Not for all.
        pub password: Option<Secret> = None,
    }
    options {
        /// How many.
        #[alias = "pool"]
        #[alias = "conns"]
        connections: u16 = "4",
        /// Which.
        kind: Kind = "one",
        /// How long.
        timeout: Duration = "1m 30s",
        /// How long at most.
        longest: Option<Duration> = "none",
        /// Whether.
        quick: bool = "true",
        /// How much.
        share: f64 = "0.5",
    }
    skip {
        pub(crate) runs: u8,
    }
}

fn read(url: &str) -> crate::Result<Example> {
    let mut url: StoreUrl = url.parse()?;
    url.check_options(&[Example::OPTIONS])?;
    let config = Example::default().merge_url(&mut url)?;
    assert_eq!(url.option_names().count(), 0, "every option is taken");
    Ok(config)
}

#[test]
fn a_url_and_serde_read_the_same() {
    let text = "x://h?pool=9&kind=the-other&timeout=2s&longest=1h&quick=false&share=0.25";
    let json = r#"{"pool": 9, "kind": "the-other", "timeout": "2s", "longest": "1h", "quick": false, "share": 0.25}"#;
    let (by_url, by_serde) = (read(text).unwrap(), serde_json::from_str::<Example>(json).unwrap());
    assert_eq!(by_url, by_serde);
    assert_eq!((by_url.connections, by_url.kind, by_url.quick), (9, Kind::TheOther, false));
    assert_eq!((by_url.timeout.as_secs(), by_url.longest.unwrap().as_secs()), (2, 3600));
    let again = serde_json::to_string(&by_url).unwrap();
    assert_eq!(serde_json::from_str::<Example>(&again).unwrap(), by_url);
    assert_eq!(read("x://h").unwrap(), Example::default());
    assert_eq!((Example::default().timeout.as_secs(), Example::default().share), (90, 0.5));
}

#[test]
fn a_spelling_too_many_is_refused() {
    for url in ["x://h?pool=1&connections=1", "x://h?pool=1&conns=2"] {
        let error = read(url).unwrap_err();
        assert!(error.to_string().contains("`connections` is given twice"), "{error}");
    }
    let error = serde_json::from_str::<Example>(r#"{"pool": 1, "connections": 1}"#).unwrap_err().to_string();
    assert!(error.contains("duplicate field `connections`"), "{error}");
    let error = serde_json::from_str::<Example>(r#"{"pol": 1}"#).unwrap_err().to_string();
    assert!(error.contains("`pol`") && error.contains("`pool`"), "{error}");
}

#[test]
fn what_is_not_of_its_type_is_named_and_not_shown() {
    for (option, wanted) in [
        ("connections=hunter2", "option `connections` is not a number from 0 to 65535"),
        ("kind=hunter2", "option `kind` is not one or the-other"),
        ("timeout=hunter2", "option `timeout` is not a time such as 500ms, 15s or 2m"),
        ("quick=hunter2", "option `quick` is not true or false"),
        ("share=inf", "option `share` is not a number"),
    ] {
        let error = read(&format!("x://h?{option}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(wanted) && !error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn a_secret_is_read_and_never_written() {
    let config: Example = serde_json::from_str(r#"{"password": "hunter2"}"#).unwrap();
    assert_eq!(config.password.as_ref().map(Secret::reveal), Some("hunter2"));
    let shown = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
    // Of digits alone, and without quotation marks, as YAML and TOML may have it.
    let error = serde_json::from_str::<Example>(r#"{"password": 271828}"#).unwrap_err().to_string();
    assert!(error.contains("text") && !error.contains("271828"), "{error}");
}
