"""The questions that OpenVINO GenAI is asked for test vectors."""
