from prednet_jax import records
from prednet_jax.runs import published
from study import again


def test_the_file_of_the_package_is_made_from_the_records():
    assert records.read_json(published.PATH) == again.summary()
