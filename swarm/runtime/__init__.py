"""What runs inside a training process: session, learner loop, syncer loop."""
