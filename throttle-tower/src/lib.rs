//! Rate limiting for tower.
