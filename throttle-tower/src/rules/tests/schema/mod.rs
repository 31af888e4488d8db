//! The schema against the reader, and against the file of the repository.

mod generator;
mod texts;
mod written;
