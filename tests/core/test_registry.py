import pytest

from lrformer.core import ConfigError, MissingExtraError, Registry, require_extra


def test_a_duplicate_name_is_an_error():
    registry: Registry[int] = Registry("number")
    registry.register("one")(1)
    with pytest.raises(ConfigError, match="number 'one' is registered twice"):
        registry.register("one")(2)
    assert registry["one"] == 1


def test_a_near_miss_gets_a_hint_and_the_list():
    registry: Registry[int] = Registry("number")
    registry.register("seven")(7)
    registry.register("eight")(8)
    with pytest.raises(ConfigError, match="unknown number 'sevn'") as error:
        registry["sevn"]
    assert "Did you mean 'seven'? Known: seven, eight." in str(error.value)
    assert (registry.names(), len(registry), "eight" in registry) == (["seven", "eight"], 2, True)


@pytest.mark.parametrize("name", [None, 3, ["seven"]])
def test_what_is_no_name_is_refused_with_the_list(name):
    registry: Registry[int] = Registry("number")
    registry.register("seven")(7)
    with pytest.raises(ConfigError, match="must be a name; known: seven"):
        registry[name]


def test_a_missing_extra_names_its_install_command():
    with pytest.raises(MissingExtraError, match=r"pip install 'lrformer\[due\]'"):
        require_extra("a_package_that_is_nowhere", extra="due")
    assert require_extra("json", extra="due").loads("1") == 1
