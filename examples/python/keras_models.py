"""keras_models.py - the models of train_tensorflow.py and train_keras.py. They return logits."""

import data
import keras
from keras import layers


class Places(layers.Layer):
    """Adds to each letter of a row something that is learned for its place."""

    def build(self, shape):
        self.places = self.add_weight(shape=shape[1:], initializer='random_normal')

    def call(self, x):
        return x + self.places


def residual_network(classes):
    image = keras.Input((8, 8))
    x = layers.Conv2D(16, 3, padding='same', activation='relu')(layers.Reshape((8, 8, 1))(image))
    inner = layers.Conv2D(16, 3, padding='same', activation='relu')(x)
    x = layers.ReLU()(x + layers.Conv2D(16, 3, padding='same')(inner))
    return keras.Model(image, layers.Dense(classes)(layers.Flatten()(layers.MaxPooling2D()(x))))


def transformer(letters, width=48):
    row = keras.Input((data.LENGTH,), dtype='int32')
    x = Places()(layers.Embedding(letters, width)(row))
    inner = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(4, width // 4)(inner, inner, use_causal_mask=True)
    inner = layers.Dense(4 * width, activation='relu')(layers.LayerNormalization()(x))
    x = x + layers.Dense(width)(inner)
    return keras.Model(row, layers.Dense(letters)(layers.LayerNormalization()(x)))


def build(name, classes):
    if name == 'digits':
        row = [layers.Flatten(), layers.Dense(64, activation='relu'), layers.Dense(classes)]
        return keras.Sequential([keras.Input((8, 8)), *row])
    return residual_network(classes) if name == 'image' else transformer(classes)
