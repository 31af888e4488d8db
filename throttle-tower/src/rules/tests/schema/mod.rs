//! The schema against the reader, and against the file of the repository.

mod texts;
mod written;
