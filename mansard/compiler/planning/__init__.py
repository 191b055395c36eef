"""From placed and compiled dispatches to a plan: values on devices, queues cut into segments, transfers."""
