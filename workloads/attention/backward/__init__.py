"""The gradient of attention: five products in one kernel with an order-free dQ, or two passes without atomics."""
