//! How a case ends.

use std::fmt;

/// What a case returns.
pub type Verdict<T = ()> = Result<T, Stop>;

/// Why a case did not pass.
#[derive(Clone, PartialEq, Eq)]
pub enum Stop {
    /// The store broke a promise; or the case could not be carried out.
    Failed(String),
    /// The case has nothing to prove on this store, and why.
    NotApplicable(String),
}

impl Stop {
    /// A failure that says `text`.
    #[must_use]
    pub fn failed(text: impl fmt::Display) -> Self {
        Self::Failed(text.to_string())
    }

    /// Says what was being done.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Self {
        match self {
            Self::Failed(text) => Self::Failed(format!("{what}: {text}")),
            Self::NotApplicable(text) => Self::NotApplicable(text),
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) => f.write_str(text),
            Self::NotApplicable(text) => write!(f, "not applicable: {text}"),
        }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// Not an `Error` itself, so that every error turns into one by `?`.
impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::Failed(text)
    }
}

/// Says what was being done when something failed.
pub trait Context<T> {
    /// Adds `what` to the failure.
    ///
    /// # Errors
    /// The failure itself.
    fn context(self, what: impl fmt::Display) -> Verdict<T>;
}

impl<T, E: Into<Stop>> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Verdict<T> {
        self.map_err(|error| error.into().during(what))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, what: impl fmt::Display) -> Verdict<T> {
        self.ok_or_else(|| Stop::failed(what))
    }
}

/// Ends the case as failed, here.
#[macro_export]
macro_rules! fail {
    ($($text:tt)+) => {
        return Err($crate::Stop::Failed(format!("{}:{}: {}", file!(), line!(), format_args!($($text)+))))
    };
}

/// Ends the case as failed unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            $crate::fail!($($text)+);
        }
    };
}

/// Ends the case as failed unless both sides are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($text:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    $crate::fail!("{}: {left:?} is not {right:?}", format_args!($($text)+));
                }
            }
        }
    };
}

/// Ends the case as failed unless the value fits the pattern; gives what the pattern binds.
#[macro_export]
macro_rules! expect {
    ($value:expr, $pattern:pat => $bound:expr, $($text:tt)+) => {
        match $value {
            $pattern => $bound,
            other => $crate::fail!("{}: got {other:?}", format_args!($($text)+)),
        }
    };
}
