use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use throttle_core::Backend;

use super::error::ShapeError;
use super::pending_reservation::PendingReservation;
use super::reserve::{Reservation, Reserved};
use super::slot::{Slot, SlotFuture};

pin_project! {
    /// A call that was not decided at once, or whose slot has not come. Ready when the call may leave.
    #[project = WaitingProj]
    pub(super) enum Waiting<B>
    where
        B: Backend,
    {
        Reserving { reservation: PendingReservation<Reserved<B>> },
        Reserved { #[pin] slot: SlotFuture<B> },
    }
}

impl<B: Backend> From<PendingReservation<Reserved<B>>> for Waiting<B> {
    fn from(reservation: PendingReservation<Reserved<B>>) -> Self {
        Self::Reserving { reservation }
    }
}

impl<B: Backend> From<Slot<B>> for Waiting<B> {
    fn from(slot: Slot<B>) -> Self {
        Self::Reserved { slot: slot.into_future() }
    }
}

impl<B: Backend> Future for Waiting<B> {
    type Output = Result<(), ShapeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                WaitingProj::Reserving { reservation } => match ready!(Pin::new(reservation).poll(cx))? {
                    Reservation::LeaveNow => return Poll::Ready(Ok(())),
                    Reservation::Wait(slot) => self.set(slot.into()),
                },
                WaitingProj::Reserved { slot } => {
                    ready!(slot.poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}
