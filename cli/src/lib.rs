//! Part of onelock.
