"""Names of values that no other value has."""

from mansard.ir.graph import fresh_name


def test_names_of_one_base_are_numbered():
    taken: set[str] = set()
    names = [fresh_name(taken, "x") for _ in range(300)]
    assert names == ["x", *(f"x_{number}" for number in range(1, 300))]
    assert taken == set(names)


def test_numbers_that_are_taken_are_passed_over():
    taken = {"x", "x_1", "x_3"}
    names = [fresh_name(taken, "x") for _ in range(20)]
    assert len(set(names)) == 20 and not {*names} & {"x", "x_1", "x_3"}


def test_letters_that_no_name_has_are_replaced():
    assert fresh_name({"a_b"}, "a b") == "a_b_1"
    assert fresh_name(set(), "") == "v"
