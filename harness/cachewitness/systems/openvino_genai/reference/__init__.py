"""OpenVINO GenAI's policy: its engine, plan, mutants and test vectors."""
