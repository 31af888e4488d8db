//! The system's allocator, which counts allocations while counting is on.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Off while time is measured: a shared counter costs more than a small allocation.
static ON: AtomicBool = AtomicBool::new(false);
static HELD: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Starts counting.
pub fn count() {
    ON.store(true, Ordering::Relaxed);
}

/// Bytes allocated and not freed since counting began.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// How many times `f` allocates.
pub fn calls(f: impl FnOnce()) -> usize {
    count();
    let before = CALLS.load(Ordering::Relaxed);
    f();
    let calls = CALLS.load(Ordering::Relaxed) - before;
    ON.store(false, Ordering::Relaxed);
    calls
}

fn gained(bytes: usize) {
    if ON.load(Ordering::Relaxed) {
        HELD.fetch_add(bytes, Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

fn lost(bytes: usize) {
    if ON.load(Ordering::Relaxed) {
        HELD.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed to the system's allocator unchanged; counting touches no memory of
// the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        gained(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        gained(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        lost(layout.size());
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        gained(size);
        lost(layout.size());
        unsafe { System.realloc(pointer, layout, size) }
    }
}
