"""The lists of mutations fit the code and the tests: else `make mutants` stops at its start."""

from tests.support.service import ROOT
from tools.mutants import read_mutations


def test_each_mutation_fits_the_code_and_names_tests_that_exist() -> None:
    for mutation in read_mutations([]):
        assert mutation.old != mutation.new, mutation.name
        for test in mutation.tests:
            module, _, name = test.partition("::")
            text = (ROOT / module).read_text()
            assert f"def {name.partition('[')[0]}(" in text if name else text, (mutation.name, test)
