from hypothesis import given
from hypothesis import strategies as st

from nextn.draft import Draft
from nextn.speculative.verify.exact import accepted_path


def choices_for(data, nodes):
    return data.draw(st.lists(st.integers(0, 2), min_size=nodes + 1, max_size=nodes + 1))


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_of_a_chain_the_longest_common_prefix(tokens, data):
    choices = choices_for(data, len(tokens))
    path = accepted_path(Draft(tokens), choices)
    n = len(path)
    assert path == list(range(n))
    assert tokens[:n] == choices[:n]
    assert n == len(tokens) or tokens[n] != choices[n]


@given(st.data())
def test_of_a_tree_the_path_that_the_target_chooses(data):
    """No two children of one node are the same token."""
    nodes = []
    for _ in range(data.draw(st.integers(0, 10))):
        child = (data.draw(st.integers(-1, len(nodes) - 1)), data.draw(st.integers(0, 2)))
        if child not in nodes:
            nodes.append(child)
    draft = Draft([token for _, token in nodes], [parent for parent, _ in nodes])
    choices = choices_for(data, len(nodes))
    path = accepted_path(draft, choices)
    last = -1
    for node in path:
        assert nodes[node] == (last, choices[last + 1])
        last = node
    assert (last, choices[last + 1]) not in nodes
