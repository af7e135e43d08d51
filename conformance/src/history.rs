//! Checkers of histories.
