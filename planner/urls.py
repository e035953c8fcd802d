from typing import Any

app_name = "planner"
urlpatterns: list[Any] = []
