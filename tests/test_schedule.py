import numpy as np

from keras_bilinear.schedule import BlockSchedule


def state(schedule):
    return [np.asarray(variable.numpy()).tolist() for variable in (schedule.active, schedule.sweep)]


def test_a_sweep_visits_every_block_and_remembers_its_last_objective():
    schedule = BlockSchedule(4)
    for J, expected in zip([9.0, 8.0, 7.0, 6.0, 5.0], [[1, 0], [2, 0], [3, 0], [0, 1], [1, 1]], strict=True):
        schedule.finish_block(J, 4)
        assert state(schedule) == expected
    assert float(schedule.objective.value) == 6.0
    assert np.isinf(float(schedule.previous_objective.value))


def test_improvement_is_known_only_between_sweeps():
    schedule = BlockSchedule(2)
    found = []
    for J in (9.0, 8.0, 7.0, 6.0):
        schedule.finish_block(J, 2)
        found.append(schedule.sweep_improvement(0.0))
    assert found[0] is None
    assert np.isinf(found[1])
    assert found[2] is None
    assert found[3] == (8.0 - 6.0) / 6.0


def test_epochs_pass_the_turn_when_the_mean_loss_stalls():
    schedule = BlockSchedule(3)
    active = []
    for losses in ([5.0, 3.0], [2.0, 2.0], [1.99, 1.99], [1.0, 1.0], [1.2, 1.0]):
        for loss in losses:
            running = schedule.observe(loss)
        assert float(running) == np.float32(np.mean(losses))
        schedule.close_epoch(block_rtol=0.01)
        active.append(int(schedule.active.value))
    assert active == [0, 0, 1, 1, 2]


def test_closing_an_epoch_without_steps_changes_nothing():
    schedule = BlockSchedule(3)
    schedule.close_epoch(block_rtol=float("inf"))
    assert state(schedule) == [0, 0]


def test_restart_and_round_trip():
    schedule = BlockSchedule(3)
    fresh = [variable.numpy() for variable in schedule.variables]
    schedule.observe(3.0)
    schedule.close_epoch(float("inf"))
    schedule.finish_block(1.0, 3)
    schedule.restart()
    for before, after in zip(fresh, schedule.variables, strict=True):
        np.testing.assert_array_equal(before, after.numpy())
    assert BlockSchedule.from_config(schedule.get_config()).num_blocks == 3
