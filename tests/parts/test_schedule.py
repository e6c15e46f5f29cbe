import numpy as np

from keras_bilinear.parts.schedule import BlockSchedule


def state(schedule):
    return [np.asarray(variable.numpy()).tolist() for variable in (schedule.active, schedule.sweep)]


def test_a_sweep_visits_every_block_and_remembers_its_last_objective():
    schedule = BlockSchedule(4)
    for J, expected in zip([9.0, 8.0, 7.0, 6.0, 5.0], [[1, 0], [2, 0], [3, 0], [0, 1], [1, 1]], strict=True):
        schedule.finish_block(J + 1, J, 4)
        assert state(schedule) == expected
    assert float(schedule.objective.value) == 6.0
    assert float(schedule.previous_objective.value) == 10.0
    assert float(schedule.sweep_start.value) == 6.0


def test_improvement_is_that_of_the_last_whole_sweep():
    schedule = BlockSchedule(2)
    for before, after in ((9.0, 8.0), (8.0, 6.0), (60.0, 50.0), (50.0, 40.0)):
        schedule.finish_block(before, after, 2)
    # The data changed between the sweeps: 6 and 60 are not compared.
    assert schedule.sweep_improvement(0.0) == (60.0 - 40.0) / 40.0


def test_a_partial_batch_counts_by_its_samples():
    schedule = BlockSchedule(2)
    schedule.observe(1.0, 30)
    assert float(schedule.observe(5.0, 10)) == 2.0


def test_epochs_pass_the_turn_when_the_mean_loss_stalls():
    schedule = BlockSchedule(3)
    active = []
    for losses in ([5.0, 3.0], [2.0, 2.0], [1.99, 1.99], [1.0, 1.0], [1.2, 1.0]):
        for loss in losses:
            running = schedule.observe(loss, 8)
        assert float(running) == np.float32(np.mean(losses))
        schedule.close_epoch(block_rtol=0.01)
        active.append(int(schedule.active.value))
    assert active == [0, 0, 1, 1, 2]


def test_closing_an_epoch_without_steps_changes_nothing():
    schedule = BlockSchedule(3)
    schedule.close_epoch(block_rtol=float("inf"))
    assert state(schedule) == [0, 0]


def test_round_trip_and_forgetting_steps():
    schedule = BlockSchedule(3)
    schedule.block_steps.assign([1, 2, 3])
    schedule.forget_steps()
    assert schedule.block_steps.numpy().tolist() == [0, 0, 0]
    assert BlockSchedule.from_config(schedule.get_config()).num_blocks == 3


def test_it_remembers_the_steps_and_the_gradient_of_every_block():
    schedule = BlockSchedule(num_blocks=3)
    schedule.record(1, grad_norm=0.5, steps=20)
    schedule.record(2, grad_norm=0.25, steps=3)
    schedule.record(1, grad_norm=0.125, steps=2)
    np.testing.assert_array_equal(schedule.block_steps.numpy(), [0, 22, 3])
    np.testing.assert_array_equal(schedule.grad_norms.numpy(), [np.nan, 0.125, 0.25])
    schedule.forget_steps()
    np.testing.assert_array_equal(schedule.block_steps.numpy(), [0, 0, 0])
    np.testing.assert_array_equal(schedule.grad_norms.numpy(), [np.nan, np.nan, np.nan])


def test_in_the_middle_of_a_sweep_the_improvement_is_that_of_the_one_that_ended():
    schedule = BlockSchedule(3)
    for before, after in ((9.0, 8.0), (8.0, 7.0), (7.0, 6.0), (6.0, 5.9), (5.9, 5.8)):
        schedule.finish_block(before, after, 3)
    assert schedule.sweep_improvement(0.0) == (9.0 - 6.0) / 6.0


def test_a_sweep_that_another_fit_began_says_nothing():
    schedule = BlockSchedule(3)
    schedule.finish_block(9.0, 8.0, 3)
    schedule.begin_fit()
    for before, after in ((8.0, 7.99), (7.99, 7.98)):
        schedule.finish_block(before, after, 3)
    assert schedule.sweep_improvement(0.0) == np.inf
    schedule.begin_fit()  # between two sweeps nothing is lost
    for before, after in ((8.0, 7.0), (7.0, 6.0), (6.0, 5.0)):
        schedule.finish_block(before, after, 3)
    assert schedule.sweep_improvement(0.0) == (8.0 - 5.0) / 5.0
