//! Rate limits that many processes share: the Redis backend of throttle.
