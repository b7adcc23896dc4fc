import inspect
import pickle

from zephon_core import errors
from zephon_core.errors import BadRowError, ZephonError


def test_message_says_where_found_wanted_and_remedy():
    error = BadRowError("train.jsonl:1041 (byte 88,213)", "'query' is a number", wanted="text", remedy="Fix the row.")
    assert str(error) == "train.jsonl:1041 (byte 88,213): 'query' is a number, expected text. Fix the row."


def test_errors_cross_process_boundaries_whole():
    error = BadRowError("a", "b", wanted="c", remedy="d")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is BadRowError
    assert (again.where, again.found, again.wanted, again.remedy, str(again)) == ("a", "b", "c", "d", str(error))


def test_all_lists_every_error_and_every_error_has_one_root():
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__}
    assert errors.__all__ == sorted(classes)
    assert all(issubclass(getattr(errors, name), ZephonError) for name in classes)
