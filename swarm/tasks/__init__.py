"""What is trained: model, data, loss and evaluation, per framework."""
