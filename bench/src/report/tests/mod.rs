mod file;
mod page;
mod sample;
mod versus;
mod words;
