# SPDX-License-Identifier: MIT
# libkvstate_engine and the kvstate program.
