//! The schema against the reader, and against the file of the repository.

mod documented;
mod generator;
mod texts;
mod written;
