import math

import torch

from experiments.random_views import RandomView

STILL = RandomView(scale=(1, 1), shift=0, rotation=0, stretch=0, noise=0, blur=0)


def image() -> torch.Tensor:
    return torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def bar() -> torch.Tensor:
    """A horizontal bar through the middle."""
    images = torch.zeros(1, 1, 28, 28)
    images[..., 13:15, 4:24] = 1
    return images


def test_without_any_change_a_view_is_its_image() -> None:
    torch.testing.assert_close(STILL(image()), image(), atol=1e-4, rtol=0)


def test_a_shift_moves_the_middle_by_no_more_than_its_share() -> None:
    torch.manual_seed(0)
    images = torch.zeros(200, 1, 28, 28)
    images[..., 13:15, 13:15] = 1
    views = RandomView(scale=(1, 1), shift=0.1, rotation=0, stretch=0, noise=0, blur=0)(images)
    places = torch.arange(28) - 13.5
    moved = (views.sum(dim=2)[:, 0] * places).sum(dim=1) / views.sum(dim=(1, 2, 3))
    assert moved.abs().max() <= 2.8 + 1e-3
    assert moved.min() < -2
    assert moved.max() > 2


def test_a_rotation_turns_a_bar_within_its_limit() -> None:
    torch.manual_seed(0)
    views = RandomView(scale=(1, 1), shift=0, rotation=30, stretch=0, noise=0, blur=0)(
        bar().repeat(200, 1, 1, 1)
    )
    y, x = torch.meshgrid(torch.arange(28) - 13.5, torch.arange(28) - 13.5, indexing="ij")
    mass = views[:, 0]
    xy, xx, yy = ((mass * product).sum(dim=(1, 2)) for product in (x * y, x * x, y * y))
    angles = torch.rad2deg(0.5 * torch.atan2(2 * xy, xx - yy))
    assert angles.abs().max() < 31
    assert angles.min() < -25
    assert angles.max() > 25


def test_noise_and_blur_are_what_they_say() -> None:
    torch.manual_seed(0)
    noisy = RandomView(scale=(1, 1), shift=0, rotation=0, stretch=0, noise=0.2, blur=0)(
        torch.zeros(400, 1, 28, 28)
    )
    deviations = noisy.flatten(1).std(dim=1)
    assert deviations.max() < 0.22
    assert abs(deviations.mean() - 0.1) < 0.01
    blurred = RandomView(scale=(1, 1), shift=0, rotation=0, stretch=0, noise=0, blur=1)(image())
    assert math.isclose(blurred[0, 0, 5, 5], image()[0, 0, 4:7, 4:7].mean(), rel_tol=1e-3)


def test_every_image_has_its_own_draw_and_the_seed_decides() -> None:
    images = image().repeat(2, 1, 1, 1)
    torch.manual_seed(1)
    first = RandomView()(images)
    torch.manual_seed(1)
    assert torch.equal(RandomView()(images), first)
    assert not torch.allclose(first[0], first[1], atol=0.1)
