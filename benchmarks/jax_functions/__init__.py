"""Functions of jax.numpy, jax.lax, jax.nn and jax.scipy over shapes and dtypes, compared with JAX."""
