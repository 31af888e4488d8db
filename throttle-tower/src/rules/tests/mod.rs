mod bad;
mod good;
mod hostile;
mod requests;
